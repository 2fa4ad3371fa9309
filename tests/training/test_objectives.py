"""Losses of all kinds against NumPy in float64, token by token."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny
from testing.small import log_softmax

from specsamp.drafting.features import TargetHead
from specsamp.drafting.trained import KINDS, head_for, make
from specsamp.models import Transformer
from specsamp.training import distill
from specsamp.training.distill_config import DistillConfig
from specsamp.training.objectives import LOSSES, blocks, depths, layers
from specsamp.training.objectives.depths import Batch

_VOCAB, _BATCH, _LENGTH, _AHEAD = 29, 2, 10, 4
_STARTS = np.array([[7, 2, 9, 0], [1, 8, 4, 5]], np.int32)
_TOKENS = np.random.default_rng(0).integers(
  _VOCAB, size=(_BATCH, _LENGTH + 1), dtype=np.int32
)


@functools.cache
def _made(kind, **fields):
  target = tiny.model(_VOCAB, 0, num_layers=max(2, tiny.layers(kind)))
  return target, tiny.trained(target, kind, _AHEAD, **fields)


def _batch(module):
  rng = np.random.default_rng(1)
  draw = lambda width: rng.standard_normal((_BATCH, _LENGTH, width), np.float32)
  hidden, noise = draw(16), np.float32(0.3) * draw(16)
  features = draw(16 * len(module.taps)) if module.taps else hidden
  return Batch(_TOKENS, _STARTS, features, noise, hidden)


def _in_64_bits(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def _outputs(kind, made, batch, retention):
  """Yields (row, start, depth, position that is read, output of width D)."""
  module, params, target_head = made
  inputs = _TOKENS[:, :-1]
  if kind in ('medusa', 'hydra'):
    params, shared = _in_64_bits((params, target_head.params))
    starts = [(b, t) for b in range(_BATCH) for t in _STARTS[b]]
    for (b, t), j in itertools.product(starts, range(1, _AHEAD + 1)):
      if t + j >= _LENGTH:
        continue
      read = [batch.features[b, t]]
      if kind == 'hydra':
        read += [
          shared['embedding'][_TOKENS[b, t + i]] for i in range(1, j + 1)
        ]
      head = params[f'head_{j}']
      fused = head['fuse'] @ np.concatenate(read) + head['fuse_bias']
      silu = fused / (1 + np.exp(-fused))
      yield b, t, j - 1, t + j, batch.features[b, t] + silu
  elif kind in ('dflash', 'treeflash'):
    context = module.apply({'params': params}, batch.features, method='context')
    hidden = jax.jit(
      lambda: blocks.outputs(
        module, params, target_head, context, inputs, _STARTS
      )
    )()
    for b, m, j in np.ndindex(*hidden.shape[:3]):
      if _STARTS[b, m] + j < _LENGTH:
        place = _STARTS[b, m] + j
        output = hidden[b, m, j]
        if kind == 'treeflash':
          token = target_head.params['embedding'][_TOKENS[b, place]]
          output = _after(_in_64_bits(params), output, np.asarray(token))
        yield b, _STARTS[b, m], j, place, output
  else:
    features = None
    if KINDS[kind].reads_features:
      features = batch.features + batch.noise
    hidden = jax.jit(
      lambda: (
        layers.group_outputs(
          module, params, target_head, features, inputs, _STARTS, retention
        ).hidden
      )
    )()
    masks = layers.group_sizes(_STARTS.shape[1], module.num_masks, retention)
    for b in range(_BATCH):
      slots = [(t, 0) for t in range(_LENGTH)]
      for start, count in zip(_STARTS[b], masks, strict=True):
        slots += [(start, j) for j in range(1, count + 1)]
      for slot, (start, j) in enumerate(slots):
        if start + j < _LENGTH:
          yield b, start, j, start + j, hidden[b, slot]


def _after(params, output, token):
  """Returns the LM head's input of TreeFlash after a token, float64 [D]."""

  def rms(x, name, of):
    return of[name]['scale'] * x / np.sqrt((x * x).mean() + 1e-6)

  mlp, output = params['token_mlp'], np.asarray(output, np.float64)
  read = [rms(token, 'token_norm', mlp), rms(output, 'final_norm', params)]
  up, gate = np.split(mlp['fuse'] @ np.concatenate(read) + mlp['fuse_bias'], 2)
  added = mlp['down'] @ (up * gate / (1 + np.exp(-gate)))
  return rms(output + added, 'final_norm', params)


def _loss_and_alpha(name, q_logits, p_logits, label):
  log_q, log_p = log_softmax(q_logits), log_softmax(p_logits)
  alpha = np.minimum(np.exp(log_q), np.exp(log_p)).sum()
  losses = {
    'text': -log_q[label],
    'kl': np.sum(np.exp(log_p) * (log_p - log_q)),
    'lk_alpha': -np.log(alpha),
  }
  return losses[name], alpha


def _total(config, losses, alphas, first):
  """Returns the total of {(draft, depth): loss}: weighted means of depths."""
  depths = sorted({depth for _, depth in losses})
  at = lambda values, depth: {
    d: v for (d, j), v in values.items() if j == depth
  }
  total = 0
  for j in depths:
    for draft, loss in at(losses, j).items():
      weight = config.decay ** (first + j)
      if config.position_weights == 'expected_length':
        weight, reached = 0, 1
        for m in depths:
          others = at(alphas, m)
          reached *= others.get(draft, np.mean([*others.values()]))
          weight += reached * (m >= j)
      total += weight * loss / len(at(losses, j))
  return total


_TEXT = dict(loss='text', decay=0.7)
_KL = dict(loss='kl', decay=0.7)
_FEW = dict(draft_vocab=17)
_ALPHA = dict(loss='lk_alpha', position_weights='expected_length', decay=1.0)


# EAGLE-3, with fewer tokens than the target, is in test_unrolled.py.
@pytest.mark.parametrize(
  ('kind', 'loss'),
  [
    *((kind, _ALPHA) for kind in KINDS if kind != 'eagle3'),
    ('hydra', _TEXT),
    *((kind, _TEXT) for kind in ('medusa_parallel', 'draft_model')),
    ('eagle_parallel', _KL | dict(retention=0.6)),
    ('dflash', _KL),
    ('treeflash', _KL),
    *((kind, _KL | _FEW) for kind in ('eagle', 'hydra', 'eagle_parallel')),
    ('medusa', _TEXT | _FEW),
    ('medusa_parallel', _TEXT | _FEW),
  ],
  ids=lambda value: (
    value if isinstance(value, str) else '-'.join(map(str, value.values()))
  ),
)
def test_losses_and_metrics(kind, loss):
  config = DistillConfig(kind=kind, cross_entropy_weight=0.3, **loss)
  target, trained = _made(kind, **_FEW if config.draft_vocab else {})
  module, params = trained.module, trained.params
  target_head = head_for(module, params, target.transformer, target.params)
  made = module, params, target_head
  batch = _batch(module)
  reads = config.reads_features
  drafted = np.arange(_VOCAB)
  if config.draft_vocab:
    drafted = np.flatnonzero(params['draft_rows'] < config.draft_vocab)
  total, metrics = jax.jit(
    lambda: LOSSES[kind](
      *made, batch if reads else Batch(_TOKENS, _STARTS), config
    )
  )()
  head = np.asarray(target_head.params['head'], np.float64)[drafted].T
  values, losses, alphas = {}, {}, {}
  for b, start, depth, place, output in _outputs(
    kind, made, batch, config.retention
  ):
    output = np.asarray(output, np.float64)
    q_logits, p_logits = output @ head, batch.hidden[b, place] @ head
    at, token = ((b, start), depth), _TOKENS[b, place + 1]
    if token not in drafted:
      values.setdefault(f'agreement_{depth + 1}', []).append(False)
      if reads:
        values.setdefault(f'alpha_{depth + 1}', []).append(0)
      continue
    label = np.searchsorted(drafted, token)
    losses[at], alphas[at] = _loss_and_alpha(
      config.loss, q_logits, p_logits, label
    )
    best = p_logits.argmax() if reads else label
    row = {f'agreement_{depth + 1}': q_logits.argmax() == best}
    if reads:
      row[f'alpha_{depth + 1}'] = alphas[at]
    if kind in ('eagle', 'mtp', 'eagle_parallel'):
      error = np.abs(output - batch.features[b, place])
      smooth = np.where(error < 1, error**2 / 2, error - 0.5).mean()
      if not depth:
        row |= {'regression': smooth, config.loss: losses[at]}
      losses[at] = smooth + 0.3 * losses[at]
    row[f'loss_{depth + 1}'] = losses[at]
    for name, value in row.items():
      values.setdefault(name, []).append(value)
  expected = {name: np.mean(rows) for name, rows in values.items()}
  first = 1 if kind in ('medusa', 'hydra') else 0
  expected['loss'] = _total(config, losses, alphas, first)
  assert metrics == pytest.approx(expected, rel=1e-4)
  assert total == metrics['loss']


@pytest.mark.parametrize('parts', [1, 3])
@pytest.mark.parametrize('loss', ['text', 'kl'])
def test_gradients_in_parts(loss, parts, monkeypatch):
  """They are those of all logits at once, and only some tokens count."""
  monkeypatch.setattr(
    depths, '_PART_LOGITS', -(-_LENGTH // parts) * _VOCAB * _BATCH
  )
  target, trained = _made('eagle')
  head = TargetHead.of(target.transformer, target.params)
  config = DistillConfig(kind='eagle', loss=loss)
  rng = np.random.default_rng(2)
  counts = rng.random((_BATCH, _LENGTH)) < 0.6
  batch = _batch(trained.module)._replace(counts=counts)
  drafted = rng.standard_normal(batch.hidden.shape, np.float32)
  places = np.tile(np.arange(1, _LENGTH + 1, dtype=np.int32), (_BATCH, 1))
  weights = rng.random(places.shape, np.float32)

  def in_parts(drafted):
    labels = depths.Labels.of(batch)
    depth = labels.compare(config, head, drafted, places, 1)
    return (jnp.where(depth.inside, depth.loss, 0) * weights).sum()

  def at_once(drafted):
    counted = np.pad(counts, ((0, 0), (0, 1)))[:, 1:]
    p_logits = head.logits(np.roll(batch.hidden, -1, axis=1))
    tokens = np.roll(_TOKENS, -2, axis=1)[:, :-1]
    compared = depths.compare(config, head.logits(drafted), tokens, p_logits)
    return (jnp.where(counted, compared[0], 0) * weights).sum()

  got, expected = (
    jax.jit(jax.value_and_grad(total))(drafted) for total in (in_parts, at_once)
  )
  jax.tree.map(
    lambda *pair: np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-6),
    got,
    expected,
  )


@pytest.mark.parametrize('kind', KINDS)
def test_activations_of_a_16_bit_target_stay_in_16_bits(kind):
  """Dtype promotion is strict in tests, so that 32 bits would raise."""
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
  frozen = (target.params, {})
  total, _ = jax.eval_shape(loss, trained.params, frozen, batch)
  assert total.dtype == jnp.float32
