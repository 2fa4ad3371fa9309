"""Group-wise training is the drafting that it trains for (2410.05589, 4.2)."""

import functools
import itertools

import jax
import numpy as np
import pytest
from testing import tiny

from specsamp.drafting.features import TargetHead
from specsamp.drafting.trained import trained_drafter
from specsamp.training.objectives import groups

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
  """(params, features, tokens, starts) -> logits of tokens, of masks, reads."""
  target, trained = _made(kind, positions, num_layers)
  target_head = TargetHead.of(target.transformer, target.params)
  count = trained.module.num_masks

  @jax.jit
  def run(params, features, tokens, starts):
    masks = groups.sizes(starts.shape[1], count)
    found = groups.outputs(
      trained.module, params, target_head, features, tokens, starts, masks
    )
    split = lambda x: (
      x[:, :_LENGTH],
      x[:, _LENGTH:].reshape(*starts.shape, count, *x.shape[2:]),
    )
    return split(target_head.logits(found.hidden)), split(found.reads)

  return run


def _logits(kind='eagle_parallel', positions='rotary', num_layers=1, **changes):
  """Logits [B, T, V] of tokens and [B, M, k, V] of masks."""
  arguments = dict(
    params=_made(kind, positions, num_layers)[1].params,
    features=_FEATURES,
    tokens=_INPUTS,
    starts=_ALL,
  )
  run = _one_pass(kind, positions, num_layers)
  got = run(*(arguments | changes).values())[0]
  return tuple(map(np.asarray, got))


def _moved(before, after):
  """Which outputs are not, to the bit, what they were."""
  return tuple(
    (a != b).any(axis=-1) for a, b in zip(before, after, strict=True)
  )


@pytest.mark.parametrize(
  ('kind', 'positions', 'num_layers'),
  [
    *itertools.product(
      ('medusa_parallel', 'eagle_parallel'),
      ('rotary', 'learned', 'relative'),
      (1,),
    ),
    ('eagle', 'rotary', 1),
    ('eagle_parallel', 'rotary', 2),
  ],
)
def test_one_pass_drafts_at_every_position(kind, positions, num_layers):
  """What a drafter says after every prefix, from that prefix alone."""
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
  own, ahead = _logits(
    kind, positions, num_layers, features=features[_LENGTH - 1 :: _LENGTH]
  )
  got = np.concatenate([own[:, :, None], ahead], axis=2)
  wanted = wanted.reshape(got.shape)
  np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(got).max(), rtol=0)
  # Masks of a group, and groups, say different things.
  assert np.ptp(got, axis=2).max(axis=-1).min() > 0.1 or kind == 'eagle'


def test_nothing_later_is_seen():
  place = 6
  before = _logits()
  tokens = _INPUTS.copy()
  tokens[0, place] = (tokens[0, place] + 1) % _VOCAB
  wanted = np.zeros((_BATCH, _LENGTH), bool)
  wanted[0, place:] = True
  own, ahead = _moved(before, _logits(tokens=tokens))
  np.testing.assert_array_equal(own, wanted)
  np.testing.assert_array_equal(ahead, np.repeat(wanted[..., None], _MASKS, 2))
  # A feature is read one place on, beside the token that it predicts.
  features = _FEATURES.copy()
  features[0, place] += 1
  wanted[0, place] = False
  own, ahead = _moved(before, _logits(features=features))
  np.testing.assert_array_equal(own, wanted)
  np.testing.assert_array_equal(ahead, np.repeat(wanted[..., None], _MASKS, 2))


def test_a_mask_is_seen_by_those_after_it_and_by_no_token():
  params = dict(_made('eagle_parallel')[1].params)
  params['mask_embedding'] = params['mask_embedding'].at[1].add(1)
  own, ahead = _moved(_logits(), _logits(params=params))
  assert not own.any()
  assert not ahead[:, :, 0].any()
  assert ahead[:, :, 1:].all()


def test_a_group_is_seen_by_no_other():
  starts = _ALL.copy()
  starts[1, 4] = 8
  own, ahead = _moved(_logits(), _logits(starts=starts))
  assert not own.any()
  assert ahead[1, 4].all()
  ahead[1, 4] = False
  assert not ahead.any()


def test_some_groups_say_what_they_say_among_all():
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


def test_a_group_of_fewer_masks_says_what_it_says_among_all():
  target, trained = _made('eagle_parallel')
  target_head = TargetHead.of(target.transformer, target.params)
  masks = groups.sizes(4, _MASKS, 0.6)
  assert masks.tolist() == [3, 3, 2, 1]
  assert groups.sizes(3, 2).tolist() == [2, 2, 2]
  assert groups.sizes(3, 0).tolist() == [0, 0, 0]
  found = jax.jit(
    lambda: groups.outputs(
      trained.module,
      trained.params,
      target_head,
      _FEATURES,
      _INPUTS,
      _FEW,
      masks,
    )
  )()
  number = [0] * _LENGTH + [1, 2, 3, 1, 2, 3, 1, 2, 1]
  assert found.number.tolist() == number
  own, ahead = _logits(starts=_FEW)
  there = np.arange(_MASKS) < masks[:, None]
  np.testing.assert_allclose(
    target_head.logits(found.hidden),
    np.concatenate([own, ahead[:, there]], axis=1),
    atol=1e-4,
    rtol=0,
  )
  np.testing.assert_array_equal(
    found.reads[:, _LENGTH:],
    (_FEW[:, :, None] + np.arange(1, _AHEAD))[:, there],
  )


def test_by_depth_leaves_out_what_lies_beyond():
  rng = np.random.default_rng(1)
  own, ahead = rng.random((_BATCH, _LENGTH)), rng.random((*_FEW.shape, _MASKS))
  number = np.concatenate([np.zeros(_LENGTH), np.tile([1, 2, 3], len(_FEW[0]))])
  reads = _FEW[:, :, None] + np.arange(1, _AHEAD)
  ahead = np.where(reads < _LENGTH, ahead, np.inf)
  wanted = [own.mean()] + [
    ahead[:, :, j][reads[:, :, j] < _LENGTH].mean() for j in range(_MASKS)
  ]
  flat = lambda a, b: np.concatenate([a, b.reshape(_BATCH, -1)], axis=1)
  made = groups.Groups(None, flat(_ALL, reads), number)
  values = flat(own, ahead).astype(np.float32)
  by_depth = jax.jit(groups.by_depth, static_argnums=(2, 3))
  got = by_depth(made, values, _LENGTH, _MASKS)
  np.testing.assert_allclose(got, wanted, rtol=1e-6)
  none = groups.Groups(None, np.full((1, 2), 5), np.arange(2))
  assert by_depth(none, np.full((1, 2), np.inf, np.float32), 1, 1)[1] == 0
