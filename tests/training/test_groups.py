"""Group-wise training computes what drafting computes (2410.05589, 4.2)."""

import functools

import jax
import numpy as np
import pytest
from testing import tiny

from specsamp.drafting.features import TargetHead
from specsamp.drafting.trained import trained_drafter
from specsamp.training.objectives import layers

_VOCAB, _BATCH, _LENGTH, _MASKS = 29, 2, 10, 3
_AHEAD = _MASKS + 1
_ALL = np.tile(np.arange(_LENGTH, dtype=np.int32), (_BATCH, 1))
_FEW = np.array([[7, 2, 9, 0], [1, 8, 4, 5]], np.int32)
_RNG = np.random.default_rng(0)
_TOKENS = _RNG.integers(_VOCAB, size=(_BATCH, _LENGTH + 1), dtype=np.int32)
_INPUTS = _TOKENS[:, :-1]
_FEATURES = _RNG.standard_normal((_BATCH, _LENGTH, 16), np.float32)


@functools.cache
def _made(kind, positions='rotary', num_layers=1):
  depth = max(2, tiny.layers(kind))
  target = tiny.model(_VOCAB, 0, positions=positions, num_layers=depth)
  return target, tiny.trained(target, kind, _AHEAD, num_layers=num_layers)


@functools.cache
def _one_pass(kind, positions, num_layers=1):
  """Returns (params, features, tokens, starts) -> logits, reads.

  Both are pairs: those of tokens and those of masks.
  """
  target, trained = _made(kind, positions, num_layers)
  target_head = TargetHead.of(target.transformer, target.params)
  count = trained.module.num_masks

  @jax.jit
  def run(params, features, tokens, starts):
    outputs = layers.group_outputs(
      trained.module, params, target_head, features, tokens, starts, 1.0
    )
    split = lambda x: (
      x[:, :_LENGTH],
      x[:, _LENGTH:].reshape(*starts.shape, count, *x.shape[2:]),
    )
    return split(target_head.logits(outputs.hidden)), split(outputs.reads)

  return run


def _logits(kind='eagle_parallel', positions='rotary', num_layers=1, **changes):
  """Returns logits [B, T, V] of tokens and [B, M, k, V] of masks."""
  arguments = dict(
    params=_made(kind, positions, num_layers)[1].params,
    features=_FEATURES,
    tokens=_INPUTS,
    starts=_ALL,
  )
  run = _one_pass(kind, positions, num_layers)
  got = run(*(arguments | changes).values())[0]
  return tuple(map(np.asarray, got))


@pytest.mark.parametrize(
  ('kind', 'positions', 'num_layers'),
  [
    ('medusa_parallel', 'learned', 1),
    ('eagle_parallel', 'relative', 1),
    ('eagle_parallel', 'rotary', 2),
    ('eagle', 'rotary', 1),
  ],
)
def test_one_pass_drafts_at_every_position(kind, positions, num_layers):
  """Its logits are those of a drafter that reads each prefix alone."""
  target, trained = _made(kind, positions, num_layers)
  drafter = trained_drafter(trained, target, _AHEAD)

  @jax.jit
  def draft(prefixes, lengths):
    variables = {'params': target.params}
    hidden = target.transformer.apply(variables, prefixes).hidden
    state = drafter.init(prefixes, lengths, hidden, _LENGTH)
    return drafter.target_head.logits(state.hidden), hidden

  lengths = np.tile(np.arange(1, _LENGTH + 1, dtype=np.int32), _BATCH)
  prefixes = np.repeat(_INPUTS, _LENGTH, axis=0)
  prefixes[np.arange(_LENGTH) >= lengths[:, None]] = 0
  wanted, features = draft(prefixes, lengths)
  tokens, masks = _logits(
    kind, positions, num_layers, features=features[_LENGTH - 1 :: _LENGTH]
  )
  got = np.concatenate([tokens[:, :, None], masks], axis=2)
  wanted = wanted.reshape(got.shape)
  np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(got).max(), rtol=0)
  # Masks of a group differ, and so do groups.
  assert np.ptp(got, axis=2).max(axis=-1).min() > 0.1 or kind == 'eagle'


def test_some_groups_equal_those_among_all():
  (own, ahead), (own_few, few) = _logits(), _logits(starts=_FEW)
  near = functools.partial(np.testing.assert_allclose, atol=1e-4, rtol=0)
  near(own_few, own)
  near(few, np.take_along_axis(ahead, _FEW[:, :, None, None], axis=1))
  run = _one_pass('eagle_parallel', 'rotary')
  trained = _made('eagle_parallel')[1]
  own, ahead = run(trained.params, _FEATURES, _INPUTS, _FEW)[1]
  np.testing.assert_array_equal(own, _ALL)
  masks = np.arange(1, _AHEAD)[None, None]
  np.testing.assert_array_equal(ahead, _FEW[:, :, None] + masks)


def test_groups_with_fewer_masks_equal_whole_ones():
  target, trained = _made('eagle_parallel')
  target_head = TargetHead.of(target.transformer, target.params)
  masks = layers.group_sizes(4, _MASKS, 0.6)
  assert masks.tolist() == [3, 3, 2, 1]
  assert layers.group_sizes(3, 2, 1.0).tolist() == [2, 2, 2]
  assert layers.group_sizes(3, 0, 1.0).tolist() == [0, 0, 0]
  outputs = jax.jit(
    lambda: layers.group_outputs(
      trained.module, trained.params, target_head, _FEATURES, _INPUTS, _FEW, 0.6
    )
  )()
  number = [0] * _LENGTH + [1, 2, 3, 1, 2, 3, 1, 2, 1]
  assert outputs.number.tolist() == number
  own, ahead = _logits(starts=_FEW)
  there = np.arange(_MASKS) < masks[:, None]
  np.testing.assert_allclose(
    target_head.logits(outputs.hidden),
    np.concatenate([own, ahead[:, there]], axis=1),
    atol=1e-4,
    rtol=0,
  )
  np.testing.assert_array_equal(
    outputs.reads[:, _LENGTH:],
    (_FEW[:, :, None] + np.arange(1, _AHEAD))[:, there],
  )
