"""The notebooks run as a reader would run them, at the smallest size.

Most of the embedded target's layers are removed, see `shallow`. The notebooks
store their full-size outputs, see `execute`.
"""

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

_TESTS = pathlib.Path(__file__).parents[1]

_SHALLOW = f"""\
import sys

sys.path.append({str(_TESTS)!r})
from testing import shallow
import specsamp
from specsamp import zoo

zoo.load = shallow.zoo_load()
specsamp.load = lambda name, **_: shallow.chat_target()
"""

# Values that a cell after the parameters sets.
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
  '08_check_your_sampler': dict(num_samples=200, sizes=(300, 1000)),
  '09_chat_with_smollm2': dict(
    questions=('def f(a):',), max_new_tokens=8, repeats=1
  ),
}


_each = pytest.mark.parametrize('name', _SMOKE)

# Paths that would identify a machine.
_PATHS = re.compile(
  r'/(home|root|Users|tmp|usr|opt|workspace)/|[A-Z]:\\\\|0x\w{6}'
)


def _read(name):
  return nbformat.read(execute.FOLDER / f'{name}.ipynb', as_version=4)


def _code(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


def _is_parameters(cell):
  return 'parameters' in cell.metadata.get('tags', [])


def _install():
  return _code(_read('01_speculative_sampling'))[0].source


@_each
def test_is_kept_clean(name):
  """`execute.py` has written the notebook, and every picture is in it."""
  assert {path.stem for path in execute.FOLDER.glob('*.ipynb')} == {*_SMOKE}
  notebook = _read(name)
  nbformat.validate(notebook)
  assert list(notebook.metadata) == ['kernelspec']
  assert notebook.cells[0].cell_type == 'markdown'
  code = _code(notebook)
  assert code[0].source == _install()
  assert [_is_parameters(cell) for cell in code].count(True) == 1
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


@pytest.mark.parametrize('is_installed', [True, False])
def test_install_cell(is_installed, tmp_path, monkeypatch):
  """Uses an installed package, and otherwise prints how to get one."""
  shell = unittest.mock.Mock()
  monkeypatch.chdir(tmp_path)
  cell = TransformerManager().transform_cell(_install())
  run = lambda: exec(cell, dict(get_ipython=lambda: shell))
  if is_installed:
    run()
    assert not shell.mock_calls
    return
  monkeypatch.setitem(sys.modules, 'specsamp', None)
  with pytest.raises(SystemExit, match=re.escape(sys.executable)):
    run()
  ((magic, line),) = [call.args for call in shell.run_line_magic.mock_calls]
  assert magic == 'pip' and line.startswith('install -q "specsamp')


@_each
def test_runs(name, server, tmp_path):
  notebook = _read(name)
  sources = [cell.source for cell in _code(notebook)]
  (at,) = [i for i, c in enumerate(_code(notebook)) if _is_parameters(c)]
  for key in _SMOKE[name]:
    assert re.search(rf'^{key} = ', sources[at], re.M), key
  smaller = [f'{key} = {value!r}' for key, value in _SMOKE[name].items()]
  sources.insert(at + 1, '\n'.join([_SHALLOW, *smaller]))
  error, kinds = without_kernel.run(server, sources, tmp_path, timeout=240)
  assert not error, error
  assert 'image/png' in kinds
