"""Random drafters of tiny targets, for the tests of this folder."""

import functools

import jax
import numpy as np
import pytest
from testing import tiny

from specsamp.decoding.request import Request
from specsamp.drafting import DynamicTree, TokenTree
from specsamp.drafting.eagle import EagleState
from specsamp.drafting.trained import KINDS, trained_drafter
from specsamp.sampling.transforms import SamplingParams

VOCAB = 11
CHAIN = TokenTree.chain(3)
# Leaves at every depth; nodes with one, two and three children in a level.
IRREGULAR = TokenTree((-1, 0, 0, 0, 1, 1, 3, 4, 4, 6))
SHAPES = {
  'chain': (CHAIN, 'iid', 'token'),
  'tree': (IRREGULAR, 'without_replacement', 'multi_candidate'),
  # Shallow: that weights of noise are right to the end takes many nodes.
  'dynamic': (DynamicTree.of(16, 2, 6), 'deterministic', 'naive'),
}
GREEDY = SamplingParams(temperature=0.0)
kinds = pytest.mark.parametrize('kind', KINDS)


@functools.cache
def make_target(
  positions='rotary', vocab_size=VOCAB, seed=28, width=16, num_layers=1
):
  return tiny.model(
    vocab_size, seed, positions=positions, num_layers=num_layers, width=width
  )


@functools.partial(jax.jit, static_argnums=0)
def _features(transformer, params, tokens_bs):
  return transformer.apply({'params': params}, tokens_bs).features


def features_of(target, tokens_bs, taps=()):
  """What drafters read of a target at every token, from one whole pass."""
  return _features(
    target.transformer.clone(taps=taps), target.params, tokens_bs
  )


def make_drafter(kind, shape, target=None, num_layers=1):
  target = target or make_target()
  tree, law, _ = SHAPES[shape]
  trained = tiny.trained(target, kind, num_layers=num_layers)
  return trained_drafter(trained, target, tree, law)


PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1], [8, 2, 8, 1, 8], [5, 5]]
BUDGETS = [20, 9, 12, 1, 18]
# Near uniform laws, of which all is accepted, and greedy ones.
SAMPLING = SamplingParams(temperature=np.array([8.0, 30.0, 0.0, 1.0, 30.0]))


def check_states(target, drafter, verifier):
  """After every round it is as if the text had been a prompt.

  True features, and no slot that a draft has left behind.
  """
  job = Request.make(
    target, PROMPTS, drafter, verifier, SAMPLING, BUDGETS, 1, [],
    tree_attention=True,
  )  # fmt: skip
  state = job.prefill()
  start = jax.jit(lambda drafter, *args: drafter.init(*args), static_argnums=4)
  counts = []
  for _ in range(8):
    before = np.asarray(state.stats.num_accepted_per_pos).sum(axis=1)
    active = ~np.asarray(state.done)
    state = job.decode(state, rounds=1)
    accepted = np.asarray(state.stats.num_accepted_per_pos).sum(axis=1) - before
    going_on = ~np.asarray(state.done)
    counts += accepted[going_on].tolist()
    # The noise behind the text would be read by nothing but a mistake.
    at = np.arange(state.tokens.shape[1])[None]
    tokens = np.where(at < np.asarray(state.length)[:, None], state.tokens, 0)
    wanted = start(
      drafter,
      tokens,
      state.length,
      features_of(target, tokens, drafter.taps),
      tokens.shape[1],
    )
    if not isinstance(wanted, EagleState):  # Medusa's
      caches, got, expected = [], state.drafter, wanted
    else:
      caches = zip(
        (*state.drafter.cache.keys, *state.drafter.cache.values),
        (*wanted.cache.keys, *wanted.cache.values),
        strict=True,
      )
      got, expected = state.drafter.hidden, wanted.hidden
    # Float32 of what is added up in another order, from large streams.
    size = 1 + np.abs(expected).max()
    np.testing.assert_allclose(
      got[going_on], expected[going_on], atol=1e-5 * size, rtol=1e-5
    )
    for one, other in caches:
      for row in np.flatnonzero(active):
        length = state.length[row]
        np.testing.assert_allclose(
          one[row, :, :length],
          other[row, :, :length],
          atol=1e-5 * size,
          rtol=1e-5,
        )
  assert {0, drafter.tree.depth} <= set(counts)
  # Paths that do not stand side by side; dynamic trees have no ranks.
  if not (drafter.tree.is_chain or isinstance(drafter.tree, DynamicTree)):
    assert np.asarray(state.stats.num_accepted_per_rank)[:, 1:].any()
