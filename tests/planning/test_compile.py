"""The paper's models compiled for its 16 TPU v4, without a TPU."""

import dataclasses

import pytest

from specsamp.drafting.draft import TokenTree
from specsamp.models import presets
from specsamp.planning import compile, topology
from specsamp.planning.compile import Program
from specsamp.planning.work import Collective

_GIB = 2**30


@pytest.mark.extended
@pytest.mark.tpu_aot
@pytest.mark.parametrize(
  'num_layers', [4, pytest.param(80, marks=pytest.mark.slow)]
)
def test_the_loop_of_chinchilla_is_lean(num_layers):
  compiled = compile.compile_program(
    Program(compile.LOOP, TokenTree.chain(4), context=2048),
    dataclasses.replace(presets.chinchilla_70b(), num_layers=num_layers),
    presets.chinchilla_draft_4b(),
    topology.parse('v4:2x2x4'),
  )
  # A chip holds the weights once, and caches are not copied.
  assert 0.1 * num_layers < compiled.weights / _GIB < 0.1 * num_layers + 0.8
  assert compiled.temporaries <= compiled.caches / 2
  assert compiled.total < compiled.topology.chip.hbm_bytes / 3
  by_size = {each.num_bytes: each for each in compiled.collectives}
  assert {each.kind for each in compiled.collectives} == {'all-reduce'}
  # Two per layer and one for the embedding, of five tokens' activations.
  assert by_size.pop(5 * 8192 * 2).count == 2 * num_layers + 1
  # The draft's first step, and its others in a loop.
  assert by_size.pop(2 * 6144 * 2).count == 2 * 17
  # Sampling sends sums and a block of the vocabulary, never all 32,000 tokens.
  assert max(by_size) <= 1000
  assert sum(each.count for each in by_size.values()) < 40


def test_collectives_of_a_text():
  lines = """
    %a = f32[2,8]{1,0:T(8,128)S(3)} all-reduce(%x), channel_id=1
    %b = (f32[4]{0}, pred[1,3]{1,0:T(1,128)}) all-reduce(%x, %y), channel_id=2
    %c = bf16[5]{0} all-reduce-start(%x), channel_id=3
    %d = bf16[5]{0} all-reduce-done(%c)
    %e = (bf16[5]{0}, bf16[20]{0}) all-gather-start(%x), dimensions={0}
    %f = f32[2,8]{1,0} all-reduce(%z), channel_id=4
    %g = (u32[1]{0}, u32[1]{0}, u32[], u32[]{:S(2)}) collective-permute-start(%x)
    %h = f32[] add(%all-reduce, %y)
    %i = (f8e4m3fn[4]{0}, s8[1], s8[1], s8[1], s8[1], /*index=5*/s8[4]{0}) all-to-all(%x)
    %j = ((f32[1]{0}, f32[2]{0}), (f32[8]{0}, f32[16]{0})) all-gather-start(%x, %y)
  """  # noqa: E501
  assert compile.collectives(lines) == (
    Collective('all-gather', 96, 1),
    Collective('all-reduce', 64, 2),
    Collective('all-gather', 40, 1),
    Collective('all-reduce', 19, 1),
    Collective('all-to-all', 12, 1),
    Collective('all-reduce', 10, 1),
    Collective('collective-permute', 4, 1),
  )
