"""The notebooks run as a reader would run them, at the smallest size.

With most of the embedded target's layers taken out: see `shallow`.
"""

import ast
import pathlib
import re

import nbclient
import nbformat
import pytest

_FOLDER = pathlib.Path(__file__).parents[2] / 'notebooks'
_TESTS = pathlib.Path(__file__).parents[1]

_SHALLOW = f"""\
import sys

sys.path.append({str(_TESTS)!r})
import shallow
from specsamp import zoo

zoo.load = {{'pycode': shallow.pair()}}.__getitem__
"""

# What a cell after the one of parameters sets.
_SMOKE = {
  '01_speculative_sampling': dict(max_new_tokens=8, num_prompts=1, repeats=1),
  '02_why_it_is_lossless': dict(num_rounds=100),
  '03_draft_length_and_acceptance': dict(
    draft_lens=(2,), num_prompts=1, max_new_tokens=8, repeats=1
  ),
  '04_token_trees': dict(
    drawn=(2, 1),
    trees=((2,),),  # the star of two candidates, and the best of depth 1
    candidates=2,
    num_nodes=3,
    max_depth=1,
    num_prompts=1,
    max_new_tokens=8,
  ),
  '05_train_a_drafter': dict(
    steps=2,
    batch_size=2,
    length=16,
    draft_len=2,
    num_prompts=1,
    max_new_tokens=8,
    pattern='b*.py',  # one of them is held out
  ),
  '06_plan_a_pod': dict(alphas=(0.8,), num_alphas=3),
}

_INSTALL = """\
try:
  import specsamp
except ImportError:
  %pip install -q git+https://github.com/specsamp/specsamp"""

# Of a checkout, and not of the installed package.
_ONLY_HERE = {'configs', 'launch', 'tests'}

_each = pytest.mark.parametrize('name', _SMOKE)


def _read(name):
  return nbformat.read(_FOLDER / f'{name}.ipynb', as_version=4)


def _code(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


def _is_parameters(cell):
  return 'parameters' in cell.metadata.get('tags', [])


def test_all_are_here():
  assert sorted(path.stem for path in _FOLDER.glob('*.ipynb')) == sorted(_SMOKE)


@_each
def test_is_kept_clean(name):
  notebook = _read(name)
  nbformat.validate(notebook)
  assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
  assert list(notebook.metadata) == ['kernelspec']
  assert notebook.metadata.kernelspec.name == 'python3'
  ids = [cell.id for cell in notebook.cells]
  assert len(set(ids)) == len(ids)
  assert all(re.fullmatch('[a-z0-9-]{1,24}', cell_id) for cell_id in ids)
  assert notebook.cells[0].cell_type == 'markdown'
  code = _code(notebook)
  assert code[0].source == _INSTALL
  assert [_is_parameters(cell) for cell in code].count(True) == 1
  for cell in notebook.cells:
    tags = {'tags': ['parameters']} if _is_parameters(cell) else {}
    assert cell.metadata == tags
  for cell in code:
    assert cell.execution_count is None
    assert cell.outputs == []


@_each
def test_uses_public_names_of_the_package_only(name):
  for cell in _code(_read(name))[1:]:  # but the one that installs it
    for node in ast.walk(ast.parse(cell.source)):
      for used in _names(node):
        parts = used.split('.')
        assert not any(part.startswith('_') for part in parts), used
      for module in _modules(node):
        assert module.split('.')[0] not in _ONLY_HERE, module


def _names(node):
  """What a node takes from another object or module, whatever it is."""
  match node:
    case ast.Attribute(attr=attr):
      yield attr
    case ast.Import() | ast.ImportFrom():
      yield from _modules(node)
      yield from (alias.name for alias in node.names)


def _modules(node):
  match node:
    case ast.Import(names=names):
      yield from (alias.name for alias in names)
    case ast.ImportFrom(module=module):
      yield module or ''


@_each
def test_runs(name, tmp_path, monkeypatch):
  monkeypatch.setenv('JUPYTER_PLATFORM_DIRS', '1')
  notebook = _read(name)
  (at,) = [i for i, c in enumerate(notebook.cells) if _is_parameters(c)]
  values = [f'{key} = {value!r}' for key, value in _SMOKE[name].items()]
  smaller = nbformat.v4.new_code_cell('\n'.join([_SHALLOW, *values]))
  for key in _SMOKE[name]:
    assert re.search(rf'^{key} = ', notebook.cells[at].source, re.M), key
  notebook.cells.insert(at + 1, smaller)
  nbclient.NotebookClient(
    notebook,
    timeout=300,
    kernel_name='python3',
    resources={'metadata': {'path': tmp_path}},
  ).execute()
  outputs = [output for cell in _code(notebook) for output in cell.outputs]
  assert any('image/png' in output.get('data', {}) for output in outputs)
  assert not any(output.output_type == 'error' for output in outputs)
