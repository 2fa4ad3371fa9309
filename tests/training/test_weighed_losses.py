"""Losses of heads and layers against NumPy in float64, place by place."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

from specsamp.drafting.features import TargetHead
from specsamp.drafting.trained import KINDS, make
from specsamp.models import Transformer
from specsamp.training import distill
from specsamp.training.distill_config import DistillConfig
from specsamp.training.objectives import groups, heads, layers
from specsamp.training.objectives.batch import Batch, Weights

_VOCAB, _BATCH, _LENGTH, _AHEAD = 29, 2, 10, 4
_FEW = np.array([[7, 2, 9, 0], [1, 8, 4, 5]], np.int32)
_RNG = np.random.default_rng(0)
_TOKENS = _RNG.integers(_VOCAB, size=(_BATCH, _LENGTH + 1), dtype=np.int32)
_FEATURES = _RNG.standard_normal((_BATCH, _LENGTH, 16), np.float32)
_NOISE = np.float32(0.3) * _RNG.standard_normal(_FEATURES.shape, np.float32)
_MADE = Batch(_TOKENS, _FEW, _FEATURES, _NOISE)


@functools.cache
def _made(kind):
  target = tiny.model(_VOCAB, 0, num_layers=max(2, tiny.layers(kind)))
  return target, tiny.trained(target, kind, _AHEAD)


def _silu(x):
  return x / (1 + np.exp(-x))


def _log_softmax(x):
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _in_64_bits(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def _means(values):
  return {name: np.mean(found) for name, found in values.items()}


def _apart(loss, logits, wanted, label):
  """(loss, alpha) of p and q of these logits."""
  log_q, log_p = _log_softmax(logits), _log_softmax(wanted)
  alpha = np.minimum(np.exp(log_q), np.exp(log_p)).sum()
  of = {
    'text': -log_q[label],
    'kl': np.sum(np.exp(log_p) * (log_p - log_q)),
    'lk_alpha': -np.log(alpha),
  }
  return of[loss], alpha


def _by_weight(weights, losses, alphas, first):
  """The total of {(draft, depth): loss}, each depth's mean as it weighs."""
  depths = sorted({depth for _, depth in losses})
  at = lambda values, depth: {
    d: v for (d, j), v in values.items() if j == depth
  }
  total = 0
  for j in depths:
    for draft, loss in (found := at(losses, j)).items():
      weight = weights.decay ** (first + j)
      if weights.positions == 'expected_length':
        weight, reached = 0, 1
        for m in depths:
          others = at(alphas, m)
          reached *= others.get(draft, np.mean([*others.values()]))
          weight += reached * (m >= j)
      total += weight * loss / len(found)
  return total


_WEIGHED = pytest.mark.parametrize(
  'weights',
  [
    Weights(0.7, cross_entropy=0.3, loss='text'),
    Weights(0.7, cross_entropy=0.3),
    Weights(cross_entropy=0.3, loss='lk_alpha', positions='expected_length'),
  ],
  ids=lambda weights: weights.loss,
)


@_WEIGHED
@pytest.mark.parametrize('kind', ['medusa', 'hydra'])
def test_head_losses(kind, weights):
  target, trained = _made(kind)
  target_head = TargetHead.of(target.transformer, target.params)
  total, metrics = jax.jit(
    lambda params: heads.loss(
      trained.module, params, target_head, _MADE, weights
    )
  )(trained.params)
  params, shared = _in_64_bits((trained.params, target_head.params))
  values, losses, alphas = {}, {}, {}
  places = [(b, t) for b in range(_BATCH) for t in _FEW[b]]
  for (b, t), j in itertools.product(places, range(1, _AHEAD + 1)):
    if t + 1 + j > _LENGTH:  # there is no such token
      continue
    read = [_FEATURES[b, t]]
    if kind == 'hydra':
      read += [shared['embedding'][_TOKENS[b, t + i]] for i in range(1, j + 1)]
    head = params[f'head_{j}']
    fused = head['fuse'] @ np.concatenate(read) + head['fuse_bias']
    logits = (_FEATURES[b, t] + _silu(fused)) @ shared['head'].T
    wanted = _FEATURES[b, t + j] @ shared['head'].T
    at = (b, t), j - 1
    losses[at], alphas[at] = _apart(
      weights.loss, logits, wanted, _TOKENS[b, t + 1 + j]
    )
    values.setdefault(f'loss_{j}', []).append(losses[at])
    values.setdefault(f'alpha_{j}', []).append(alphas[at])
    hit = logits.argmax() == wanted.argmax()
    values.setdefault(f'agreement_{j}', []).append(hit)
  wanted = _means(values)
  wanted['loss'] = _by_weight(weights, losses, alphas, 1)
  assert metrics == pytest.approx(wanted, rel=1e-5)
  assert total == metrics['loss']


def _slots(starts_bm, masks_m):
  """(row, output, depth, place that it predicts), within the sequence."""
  for b in range(_BATCH):
    for t in range(_LENGTH):
      yield b, t, 0, t
    slot = _LENGTH
    for start, count in zip(starts_bm[b], masks_m, strict=True):
      for j in range(1, count + 1):
        if start + j < _LENGTH:
          yield b, slot, j, start + j
        slot += 1


def _outputs(kind, features, retention):
  """(module, params, target_head), and the outputs that the losses are of."""
  target, trained = _made(kind)
  module, params = trained.module, trained.params
  target_head = TargetHead.of(target.transformer, target.params)
  masks = groups.sizes(_FEW.shape[1], module.num_masks, retention)
  hidden = jax.jit(
    lambda: (
      groups.outputs(
        module, params, target_head, features, _TOKENS[:, :-1], _FEW, masks
      ).hidden
    )
  )()
  head = _in_64_bits(target_head.params['head']).T
  made = module, params, target_head
  return made, _in_64_bits(hidden), head, [*_slots(_FEW, masks)]


@_WEIGHED
def test_losses_of_the_parallel_drafter_of_medusa(weights):
  """Its published one is of the text alone."""
  made, hidden, head, slots = _outputs('medusa_parallel', None, 1.0)
  batch = _MADE if weights.read_p else _MADE._replace(features=None)
  total, metrics = jax.jit(
    lambda: layers.medusa_parallel(*made, batch, weights)
  )()
  values, losses, alphas = {}, {}, {}
  for b, slot, depth, place in slots:
    logits, label = hidden[b, slot] @ head, _TOKENS[b, place + 1]
    at = (b, place - depth), depth
    losses[at], alphas[at] = _apart(
      weights.loss, logits, _FEATURES[b, place] @ head, label
    )
    values.setdefault(f'loss_{depth + 1}', []).append(losses[at])
    values.setdefault(f'agreement_{depth + 1}', []).append(
      logits.argmax() == label
    )
    if weights.read_p:
      values.setdefault(f'alpha_{depth + 1}', []).append(alphas[at])
  wanted = _means(values)
  wanted['loss'] = _by_weight(weights, losses, alphas, 0)
  assert metrics == pytest.approx(wanted, rel=1e-4)
  assert total == metrics['loss']


@_WEIGHED
@pytest.mark.parametrize(
  ('kind', 'retention'), [('eagle', 1.0), ('eagle_parallel', 0.6)]
)
def test_losses_of_eagle(kind, retention, weights):
  made, hidden, head, slots = _outputs(kind, _FEATURES + _NOISE, retention)
  weights = weights._replace(retention=retention)
  total, metrics = jax.jit(lambda: layers.eagle(*made, _MADE, weights))()
  values, losses, alphas = {}, {}, {}
  for b, slot, depth, place in slots:
    error = np.abs(hidden[b, slot] - _FEATURES[b, place])
    smooth = np.where(error < 1, error**2 / 2, error - 0.5).mean()
    p_logits, q_logits = _FEATURES[b, place] @ head, hidden[b, slot] @ head
    at = (b, place - depth), depth
    apart, alphas[at] = _apart(
      weights.loss, q_logits, p_logits, _TOKENS[b, place + 1]
    )
    losses[at] = smooth + 0.3 * apart
    values.setdefault(f'loss_{depth + 1}', []).append(losses[at])
    values.setdefault(f'alpha_{depth + 1}', []).append(alphas[at])
    hit = q_logits.argmax() == p_logits.argmax()
    values.setdefault(f'agreement_{depth + 1}', []).append(hit)
    if not depth:
      values.setdefault('regression', []).append(smooth)
      values.setdefault(weights.loss, []).append(apart)
  wanted = _means(values)
  wanted['loss'] = _by_weight(weights, losses, alphas, 0)
  assert metrics == pytest.approx(wanted, rel=1e-4)
  assert total == metrics['loss']


@pytest.mark.parametrize('kind', KINDS)
def test_a_target_in_16_bits_is_trained_for_in_16_bits(kind):
  """Types are strict here: 32 bits nowhere creep into its activations."""
  target, trained = _made(kind)
  config = dataclasses.replace(target.config, dtype='bfloat16')
  target = dataclasses.replace(target, transformer=Transformer(config))
  module = make(kind, config, _AHEAD)
  config = DistillConfig(kind=kind, ahead=_AHEAD, length=_LENGTH, groups=4)
  batch = {
    'tokens': _TOKENS,
    'seed': np.arange(_BATCH, dtype=np.uint32),
    'noise': np.zeros(_BATCH, np.float32),
  }
  loss = distill.make_loss(config, module, target)
  frozen = distill.Frozen(target.params, {})
  total, _ = jax.eval_shape(loss, trained.params, frozen, batch)
  assert total.dtype == jnp.float32
