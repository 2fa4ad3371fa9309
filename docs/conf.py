"""How the site is built: README, these documents, a page for each package."""

import enum
import functools
import importlib
import pkgutil
import pydoc

import specsamp

project = html_title = 'specsamp'
extensions = [
  'myst_parser',
  'sphinx.ext.autodoc',
  'sphinx.ext.autosummary',
  'sphinx.ext.napoleon',
]
templates_path = ['_templates']
html_theme = 'furo'
html_show_copyright = False
highlight_language = 'text'
myst_heading_anchors = 3

default_role = 'py:obj'  # what stands between single backticks in a docstring
add_module_names = False
python_maximum_signature_line_length = 80
autodoc_default_options = {
  'members': True,
  'undoc-members': True,
  'no-value': True,
  'ignore-module-all': True,  # each name is documented where it is defined
}
autodoc_member_order = 'bysource'
autodoc_preserve_defaults = True
napoleon_use_ivar = True  # a class's attributes are a list with their types

_packages = pkgutil.walk_packages(specsamp.__path__, 'specsamp.')
autosummary_context = {
  'exports': {
    name: getattr(importlib.import_module(name), '__all__', [])
    for name in ('specsamp', *(p.name for p in _packages if p.ispkg))
  }
}


def _resolve(app, env, node, contnode):
  """Finds the definition of a name that is imported, or written by its end."""
  name, known = node['reftarget'], env.domains['py'].objects
  thing = pydoc.locate(f'{node.get("py:module")}.{name}') or pydoc.locate(name)
  home = f'{getattr(thing, "__module__", "")}.{getattr(thing, "__name__", "")}'
  if home not in known and not (name.islower() and name.isidentifier()):
    ends = [full for full in known if full.endswith(f'.{name}')]
    home = ends[0] if len(ends) == 1 else ''
  return env.domains['py'].resolve_xref(
    env, node['refdoc'], app.builder, 'obj', home, node, contnode
  )


def _skip(app, what, name, thing, skip, options):
  """Leaves out fields, which their class lists, and members of flax."""
  if what != 'class' or isinstance(thing, enum.Enum):
    return None
  is_method = callable(thing) or isinstance(
    thing, property | functools.cached_property
  )
  return True if not is_method or name in ('replace', 'setup') else None


def setup(app):
  app.connect('missing-reference', _resolve)
  app.connect('autodoc-skip-member', _skip)
