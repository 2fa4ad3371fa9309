"""Random drafters of tiny targets, for the tests of this folder."""

import functools

import pytest
import tiny

from specsamp.drafting import TokenTree, modules
from specsamp.drafting.modules import trained_drafter
from specsamp.sampling.transforms import SamplingParams

VOCAB = 11
CHAIN = TokenTree.chain(3)
# Leaves at every depth; nodes with one, two and three children in a level.
IRREGULAR = TokenTree((-1, 0, 0, 0, 1, 1, 3, 4, 4, 6))
SHAPES = {
  'chain': (CHAIN, 'iid', 'token'),
  'tree': (IRREGULAR, 'without_replacement', 'multi_candidate'),
}
GREEDY = SamplingParams(temperature=0.0)
kinds = pytest.mark.parametrize('kind', modules.KINDS)


@functools.cache
def make_target(positions='rotary', vocab_size=VOCAB, seed=28, width=16):
  return tiny.model(
    vocab_size, seed, positions=positions, num_layers=1, width=width
  )


def make_drafter(kind, shape, target=None):
  target = target or make_target()
  tree, law, _ = SHAPES[shape]
  return trained_drafter(tiny.trained(target, kind), target, tree, law)
