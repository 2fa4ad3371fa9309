"""The paper's models compiled for its 16 TPU v4, with none of them here."""

import dataclasses

import pytest

from specsamp.models import presets
from specsamp.planning import compile, topology, work
from specsamp.planning.work import Collective

_GIB = 2**30

tpu_aot = [
  pytest.mark.extended,
  pytest.mark.tpu_aot,
]


def _part(name, slice_name='v4:2x2x4', num_layers=80):
  target = presets.chinchilla_70b()
  return compile.compile_part(
    name,
    dataclasses.replace(target, num_layers=num_layers),
    presets.chinchilla_draft_4b(),
    compile.mesh_of(topology.parse(slice_name)),
    gamma=4,
    context=2048,
  )


def _assert_lean(part, num_layers=80):
  # Bytes on a chip: weights are there once, and nothing copies a cache.
  assert 0.1 * num_layers < part.weights / _GIB < 0.1 * num_layers + 0.8
  assert part.temporaries <= part.caches / 2
  assert part.total < topology.parse('v4:2x2x4').chip.hbm_bytes / 3


class TestChinchilla:
  pytestmark = tpu_aot

  @pytest.mark.slow  # the loop below has it, with the draft's passes
  def test_scoring_pass(self):
    part = _part('scoring pass')
    _assert_lean(part)
    # Two a layer and one for the embedding, of five tokens' activations.
    assert part.collectives == (Collective('all-reduce', 5 * 8192 * 2, 161),)
    assert part.collectives == (
      work.of_pass(
        presets.chinchilla_70b(), shards=16, tokens=5, context=2048
      ).collectives
    )

  @pytest.mark.parametrize(
    'num_layers', [4, pytest.param(80, marks=pytest.mark.slow)]
  )
  def test_speculative_loop(self, num_layers):
    part = _part('speculative loop', num_layers=num_layers)
    _assert_lean(part, num_layers)
    by_size = {each.num_bytes: each for each in part.collectives}
    assert {each.kind for each in part.collectives} == {'all-reduce'}
    assert by_size.pop(5 * 8192 * 2).count == 2 * num_layers + 1
    # The draft's first step, and its others in a loop.
    assert by_size.pop(2 * 6144 * 2).count == 2 * 17
    # Sampling: sums, a block of the vocabulary; never all 32,000 tokens.
    assert max(by_size) <= 1000
    assert sum(each.count for each in by_size.values()) < 40

  @pytest.mark.slow  # the loop above has it
  @pytest.mark.parametrize('slice_name', ['v4:2x2x4', 'v5e-16'])
  def test_draft_step(self, slice_name):
    part = _part('draft step', slice_name)
    assert part.temporaries <= part.caches / 2
    assert part.collectives[0] == Collective('all-reduce', 2 * 6144 * 2, 17)
    assert max(each.num_bytes for each in part.collectives[1:]) <= 1000


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
