"""The notebooks run as a reader would run them, at the smallest size.

With most of the embedded target's layers taken out: see `shallow`. What they
print and plot at full size is stored in them: see `execute`.
"""

import ast
import base64
import json
import pathlib
import re
import sys
import unittest.mock

import execute
import nbformat
import pytest
import without_kernel
from IPython.core.inputtransformer2 import TransformerManager

_ROOT = pathlib.Path(__file__).parents[2]
_TESTS = pathlib.Path(__file__).parents[1]

_SHALLOW = f"""\
import sys

sys.path.append({str(_TESTS)!r})
from testing import shallow
from specsamp import zoo

zoo.load = shallow.zoo_load()
"""

# What a cell after the one of parameters sets.
_SMOKE = {
  '01_speculative_sampling': dict(max_new_tokens=8, num_prompts=1, repeats=1),
  '02_why_it_is_lossless': dict(num_rounds=100),
  '03_draft_length_and_acceptance': dict(
    draft_lens=(2,),
    num_prompts=1,
    max_new_tokens=8,
    repeats=1,
    replayed=(0.0,),
    num_replayed=2,
    looked_back=(0, 1),
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
  '07_batch_and_price_lists': dict(
    batches=(1, 2),
    draft_lens=(2,),
    num_prompts=2,
    max_new_tokens=8,
    repeats=1,
    slices=('h100:1',),
    rows=(1, 2),
    nodes=(1, 8),
  ),
}

# Of a checkout, and not of the installed package.
_ONLY_HERE = {'configs', 'launch', 'tests'}

_each = pytest.mark.parametrize('name', _SMOKE)


# What would tell whose machine it was.
_PATHS = re.compile(
  r'/(home|root|Users|tmp|usr|opt|workspace)/|[A-Z]:\\\\|0x\w{6}'
)


def _read(name):
  return nbformat.read(execute.FOLDER / f'{name}.ipynb', as_version=4)


def _code(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


def _is_parameters(cell):
  return 'parameters' in cell.metadata.get('tags', [])


def test_all_are_here():
  assert sorted(path.stem for path in execute.FOLDER.glob('*.ipynb')) == sorted(
    _SMOKE
  )


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
  assert code[0].source == _install()
  assert [_is_parameters(cell) for cell in code].count(True) == 1
  for cell in notebook.cells:
    tags = {'tags': ['parameters']} if _is_parameters(cell) else {}
    assert cell.metadata == tags


@_each
def test_outputs_are_stored_small(name):
  """`execute.py` has written the notebook, and every picture is in it."""
  code = _code(_read(name))
  assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
  for cell in code:
    kinds = [kind for each in cell.outputs for kind in each.get('data', {})]
    assert ('image/png' in kinds) == ('plt.show()' in cell.source), cell.id
    assert not any('widget' in kind for kind in kinds), cell.id
    for output in cell.outputs:
      assert output.output_type != 'error', cell.id
      assert output.get('name') != 'stderr', cell.id
      picture = output.get('data', {}).pop('image/png', '')
      assert len(base64.b64decode(picture)) < 40_000, cell.id
      assert not _PATHS.search(json.dumps(output)), cell.id
  assert (execute.FOLDER / f'{name}.ipynb').stat().st_size < 200_000


def _install():
  return _code(_read('01_speculative_sampling'))[0].source


@pytest.mark.parametrize('lies', ['in a checkout', 'beside it', 'nowhere'])
def test_install_cell(lies, tmp_path, monkeypatch):
  """It takes what is there, and tells what to do where nothing can be had."""
  shell = unittest.mock.Mock()
  monkeypatch.chdir(
    _ROOT / 'notebooks' if lies == 'in a checkout' else tmp_path
  )
  # Another test of this process may have been in a checkout.
  path = [entry for entry in sys.path if entry != str(_ROOT)]
  monkeypatch.setattr(sys, 'path', path)
  if lies == 'nowhere':
    monkeypatch.setitem(sys.modules, 'specsamp', None)
  cell = TransformerManager().transform_cell(_install())
  run = lambda: exec(cell, dict(get_ipython=lambda: shell))
  if lies != 'nowhere':
    run()
    assert not shell.mock_calls
    assert (sys.path[0] == str(_ROOT)) == (lies == 'in a checkout')
    return
  with pytest.raises(SystemExit, match=re.escape(sys.executable)) as told:
    run()
  ((magic, line),) = [call.args for call in shell.run_line_magic.mock_calls]
  assert magic == 'pip'
  assert line.startswith('install -q "specsamp')
  assert '\n' not in str(told.value)


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
def test_runs(name, server, tmp_path):
  notebook = _read(name)
  sources = [cell.source for cell in _code(notebook)]
  (at,) = [i for i, c in enumerate(_code(notebook)) if _is_parameters(c)]
  for key in _SMOKE[name]:
    assert re.search(rf'^{key} = ', sources[at], re.M), key
  smaller = [f'{key} = {value!r}' for key, value in _SMOKE[name].items()]
  sources.insert(at + 1, '\n'.join([_SHALLOW, *smaller]))
  ran = without_kernel.run(server, sources, tmp_path, timeout=240)
  assert not ran.error, ran.error
  assert 'image/png' in ran.kinds


def test_what_fails_is_told(server, tmp_path):
  """In a cell, in what a slider calls, and with the process."""
  run = lambda *sources: without_kernel.run(server, sources, tmp_path, 60)
  assert run('x = 2', '%pip --version', 'print(x)') == ('', set())
  assert 'ZeroDivisionError' in run('1 / 0', 'x = 1').error
  assert 'SyntaxError' in run('x =').error
  slider = (
    'from ipywidgets import interact\ninteract(lambda x: 1 / x, x=(0, 0))'
  )
  assert 'ZeroDivisionError' in run(slider).error
  assert 'code 3' in run('import os\nos._exit(3)').error
