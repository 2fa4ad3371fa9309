"""Group-wise training computes what drafting computes (2410.05589, 4.2)."""

import functools

import jax
import numpy as np
import pytest
from testing import tiny

from specsamp.drafting.drafter import after_prompts
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


def _logits(
  kind='eagle_parallel', positions='rotary', num_layers=1, features=_FEATURES
):
  """Returns logits [B, T, V] of tokens and [B, T, k, V] of all masks."""
  target, trained = _made(kind, positions, num_layers)
  target_head = TargetHead.of(target.transformer, target.params)

  @jax.jit
  def run(features):
    outputs = layers.group_outputs(
      trained.module, trained.params, target_head, features, _INPUTS, _ALL, 1.0
    )
    return target_head.logits(outputs.hidden)

  logits = np.asarray(run(features))
  shape = (*_ALL.shape, trained.module.num_masks, _VOCAB)
  return logits[:, :_LENGTH], logits[:, _LENGTH:].reshape(shape)


@pytest.mark.parametrize(
  ('kind', 'positions', 'num_layers'),
  [
    ('medusa_parallel', 'learned', 1),
    ('eagle_parallel', 'relative', 1),
    ('eagle_parallel', 'rotary', 2),
    ('eagle', 'rotary', 1),
    ('mtp', 'rotary', 1),
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
    state = after_prompts(drafter, prefixes, lengths, hidden, _LENGTH)
    return drafter.target_head.logits(state.hidden), hidden

  lengths = np.tile(np.arange(1, _LENGTH + 1, dtype=np.int32), _BATCH)
  prefixes = np.repeat(_INPUTS, _LENGTH, axis=0)
  prefixes[np.arange(_LENGTH) >= lengths[:, None]] = 0
  wanted, features = draft(prefixes, lengths)
  tokens, masks = _logits(
    kind, positions, num_layers, features[_LENGTH - 1 :: _LENGTH]
  )
  got = np.concatenate([tokens[:, :, None], masks], axis=2)
  wanted = wanted.reshape(got.shape)
  np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(got).max(), rtol=0)
  # Masks of a group differ, and so do groups.
  has_masks = trained.module.num_masks > 0
  assert np.ptp(got, axis=2).max(axis=-1).min() > 0.1 or not has_masks


@pytest.mark.parametrize(
  ('retention', 'masks'), [(1.0, [3, 3, 3, 3]), (0.6, [3, 3, 2, 1])]
)
def test_some_groups_equal_those_among_all(retention, masks):
  """Groups with fewer masks equal the first part of whole ones."""
  target, trained = _made('eagle_parallel')
  target_head = TargetHead.of(target.transformer, target.params)
  found = layers.group_sizes(4, _MASKS, retention)
  assert found.tolist() == masks
  outputs = jax.jit(
    lambda: layers.group_outputs(
      trained.module, trained.params, target_head, _FEATURES, _INPUTS, _FEW,
      retention,
    )
  )()  # fmt: skip
  there = np.arange(_MASKS) < found[:, None]
  number = np.arange(1, _AHEAD) * np.ones_like(there)
  assert outputs.number.tolist() == [0] * _LENGTH + number[there].tolist()
  np.testing.assert_array_equal(outputs.reads[:, :_LENGTH], _ALL)
  np.testing.assert_array_equal(
    outputs.reads[:, _LENGTH:], (_FEW[:, :, None] + number)[:, there]
  )
  own, ahead = _logits()
  few = np.take_along_axis(ahead, _FEW[:, :, None, None], axis=1)
  np.testing.assert_allclose(
    target_head.logits(outputs.hidden),
    np.concatenate([own, few[:, there]], axis=1),
    atol=1e-4,
    rtol=0,
  )
