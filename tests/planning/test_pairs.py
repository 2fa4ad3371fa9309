"""The published pairs: each fits its slice in the table."""

import runpy

import pytest

from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.evaluation.pairs import PAIRS, folders
from specsamp.experiments import decode
from specsamp.planning import compile, plan, topology
from specsamp.planning.compile import Program

pytestmark = pytest.mark.extended

_config = runpy.run_path('configs/plan_pairs.py')['get_config']
_decode = runpy.run_path('configs/pairs.py')['get_config']


@pytest.mark.parametrize('name', PAIRS)
def test_a_pair_fits_its_slice(name):
  values = _config(name).to_dict() | {'compile': False}
  assert not plan.prepare(values, [PAIRS[name].topology]).misfits


@pytest.mark.parametrize('name', PAIRS)
def test_a_pair_is_decoded_from_its_folders(name):
  values = _decode(name).to_dict()
  assert (values['target'], values['draft']) == tuple(
    f'MODELS/{folder}' for folder in folders(name)
  )
  with pytest.raises(UserError, match='^model MODELS/.*: no such folder'):
    decode.prepare(values)


def test_an_unknown_pair():
  for get_config in (_config, _decode):
    with pytest.raises(ValueError, match='expected one of llama-13b'):
      get_config('llama-13b')


@pytest.mark.slow
@pytest.mark.tpu_aot
@pytest.mark.parametrize('name', PAIRS)
def test_a_pair_is_compiled_for_its_slice(name):
  """The whole loop fits, copies no cache, and sends what Megatron sends."""
  pair = PAIRS[name]
  where = topology.parse(pair.topology)
  program = Program(compile.LOOP, TokenTree.chain(4), context=2048)
  compiled = compile.compile_program(program, pair.target, pair.draft, where)
  assert compiled.total < where.chip.hbm_bytes
  assert compiled.temporaries <= compiled.caches
  passes = {each.num_bytes: each for each in compiled.collectives}
  assert passes[5 * pair.target.width * 2].count >= 2 * pair.target.num_layers
