"""Random drafters of tiny targets, for the tests of this folder."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

from specsamp.decoding.request import Request
from specsamp.drafting import DynamicTree, TokenTree
from specsamp.drafting.dflash import DFlashDrafter
from specsamp.drafting.drafter import after_prompts
from specsamp.drafting.eagle import EagleState
from specsamp.drafting.trained import KINDS, trained_drafter
from specsamp.sampling.transforms import SamplingParams

VOCAB = 11
CHAIN = TokenTree.chain(3)
# Leaves at every depth; nodes with one, two and three children in a level.
IRREGULAR = TokenTree((-1, 0, 0, 0, 1, 1, 3, 4, 4, 6))
SHAPES = {
  'chain': (CHAIN, 'iid'),
  'tree': (IRREGULAR, 'without_replacement'),
  # Shallow: with random weights few deep nodes are right.
  'dynamic': (DynamicTree.of(16, 2, 6), 'deterministic'),
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
  """Returns a target's features at every token, from one whole pass."""
  return _features(
    target.transformer.clone(taps=taps), target.params, tokens_bs
  )


def check_greedy(target, prompts, texts):
  """Checks that texts are the target's most probable tokens, in one pass."""
  rows = [[*prompt, *text] for prompt, text in zip(prompts, texts, strict=True)]
  tokens = np.zeros((len(rows), max(map(len, rows))), np.int32)
  for into, row in zip(tokens, rows, strict=True):
    into[: len(row)] = row
  best = _best(target.transformer, target.params, tokens)
  for row, prompt, text in zip(best, prompts, texts, strict=True):
    begin = len(prompt) - 1
    assert row[begin : begin + len(text)].tolist() == list(text)


@functools.partial(jax.jit, static_argnums=0)
def _best(transformer, params, tokens_bs):
  logits_bsv = transformer.apply({'params': params}, tokens_bs).logits
  return jnp.argmax(logits_bsv, axis=-1)


def make_drafter(
  kind, shape, target=None, num_layers=1, coupled=False, **fields
):
  target = target or make_target()
  tree, law = SHAPES[shape]
  trained = tiny.trained(target, kind, num_layers=num_layers, **fields)
  law = 'deterministic' if coupled else law
  return trained_drafter(trained, target, tree, law, coupled)


PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1], [8, 2, 8, 1, 8], [5, 5]]
# Nearly uniform distributions, of which all tokens are accepted, and greedy
# ones.
SAMPLING = SamplingParams(temperature=np.array([8.0, 30.0, 0.0, 1.0, 30.0]))


def check_states(target, drafter):
  """Checks that after every round the state is that of the text as a prompt.

  So features are the target's, and no slot of a draft is left.
  """
  request = Request.make(
    target, PROMPTS, drafter, sampling=SAMPLING,
    max_new_tokens=[20, 9, 12, 1, 18], seed=1, stop_tokens=[],
  )  # fmt: skip
  state = request.prefill()
  start = jax.jit(after_prompts, static_argnums=4)
  counts = []
  for _ in range(8):
    before = np.asarray(state.stats.num_accepted_per_pos).sum(axis=1)
    was_active = ~np.asarray(state.done)
    state = request.decode(state, rounds=1)
    after = np.asarray(state.stats.num_accepted_per_pos).sum(axis=1)
    active = ~np.asarray(state.done)
    counts += (after - before)[active].tolist()
    # Noise after the text would be read by mistake only.
    at = np.arange(state.tokens.shape[1])[None]
    tokens = np.where(at < np.asarray(state.length)[:, None], state.tokens, 0)
    features_bsd = features_of(target, tokens, drafter.taps)
    fresh = start(drafter, tokens, state.length, features_bsd, tokens.shape[1])
    hidden, expected, caches = state.drafter, fresh, []
    if isinstance(fresh, EagleState):
      hidden, expected = hidden.hidden, expected.hidden
      both = state.drafter.cache, fresh.cache
      caches = zip(*(cache.keys + cache.values for cache in both), strict=True)
    # Float32 sums in another order, of large streams.
    atol = 1e-5 * (1 + np.abs(expected).max())
    np.testing.assert_allclose(
      hidden[active], expected[active], atol=atol, rtol=1e-5
    )
    for one, other in caches:
      for row in np.flatnonzero(was_active):
        # Blocks have the root's token, but no features of it.
        end = state.length[row] - int(isinstance(drafter, DFlashDrafter))
        np.testing.assert_allclose(
          one[row, :, :end], other[row, :, :end], atol=atol, rtol=1e-5
        )
  assert {0, drafter.tree.depth} <= set(counts)
  # Paths whose nodes are not consecutive; dynamic trees have no ranks.
  if not (drafter.tree.is_chain or isinstance(drafter.tree, DynamicTree)):
    assert np.asarray(state.stats.num_accepted_per_rank)[:, 1:].any()
