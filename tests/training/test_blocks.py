"""DFlash's blocks in training are what it drafts, and its loss is of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

from specsamp import SamplingParams
from specsamp.decoding.request import Request
from specsamp.drafting import TokenTree
from specsamp.drafting.features import TargetHead
from specsamp.drafting.trained import make, trained_drafter
from specsamp.training import distill
from specsamp.training.distill_config import DistillConfig
from specsamp.training.objectives import blocks
from specsamp.training.objectives.batch import Batch, Weights

_VOCAB, _BATCH, _LENGTH, _AHEAD = 11, 2, 12, 3
_STARTS = np.array([[7, 2, 11, 0, 4], [1, 8, 4, 5, 10]], np.int32)
_TOKENS = np.random.default_rng(0).integers(
  _VOCAB, size=(_BATCH, _LENGTH + 1), dtype=np.int32
)
_WEIGHTS = Weights(decay=0.7)


@functools.cache
def _made(positions='rotary'):
  target = tiny.model(_VOCAB, 28, num_layers=6, positions=positions)
  return target, tiny.trained(target, 'dflash', _AHEAD, num_layers=2)


@functools.partial(jax.jit, static_argnums=0)
def _logits(module, head, params, tapped_bte, tokens_bt, starts_bm):
  """After the masks of each block: [B, M, K - 1, V]."""
  context = module.apply({'params': params}, tapped_bte, method='context')
  hidden = blocks.outputs(module, params, head, context, tokens_bt, starts_bm)
  shape = (*hidden.shape[:3], _VOCAB)
  flat = hidden.reshape(len(hidden), -1, hidden.shape[-1])
  return head.logits(flat).reshape(shape)


def _read(target, taps, tokens_bt):
  """(what the target holds at the taps, what its LM head reads)."""
  out = target.transformer.clone(taps=taps).apply(
    {'params': target.params}, tokens_bt
  )
  return out.features, out.hidden


def _blocks(**changes):
  target, trained = _made()
  head = TargetHead.of(target.transformer, target.params)
  arguments = dict(
    params=trained.params,
    tapped_bte=_read(target, trained.module.taps, _TOKENS[:, :-1])[0],
    tokens_bt=_TOKENS[:, :-1],
    starts_bm=_STARTS,
  )
  return np.asarray(
    _logits(trained.module, head, *(arguments | changes).values())
  )


@pytest.mark.parametrize(
  ('positions', 'shape'),
  [
    ('rotary', (-1, 0, 0, 0, 1, 1, 3, 4)),
    ('relative', (-1, 0, 1, 2)),
    pytest.param('learned', (-1, 0, 0, 1, 1, 3), marks=pytest.mark.slow),
  ],
)
def test_blocks_are_drafts_after_rounds_with_rejections(positions, shape):
  """Logits of training, and of drafting with a cache that rounds have left."""
  target, trained = _made(positions)
  drafter = trained_drafter(
    trained, target, TokenTree(shape), 'without_replacement'
  )
  job = Request.make(
    target, [[3, 1, 4, 1, 5], [7], [2, 7, 1]], drafter, 'multi_candidate',
    sampling=SamplingParams(temperature=np.array([8.0, 30.0, 1.0])),
    max_new_tokens=[24] * 3, seed=1, stop_tokens=[],
  )  # fmt: skip
  state, accepted = job.prefill(), []
  while not np.asarray(state.done).any():
    length = np.asarray(state.length)
    logits = drafter.target_head.logits(state.drafter.hidden)
    # What stands behind the root is noise to it.
    tokens = np.asarray(state.tokens)
    tapped, _ = _read(target, drafter.taps, tokens)
    wanted = _logits(
      trained.module,
      drafter.target_head,
      trained.params,
      tapped,
      tokens,
      length[:, None] - 1,
    )
    size = 1 + np.abs(wanted).max()
    np.testing.assert_allclose(
      logits, wanted[:, 0, : drafter.tree.depth], atol=1e-5 * size, rtol=0
    )
    state = job.decode(state, rounds=1)
    accepted += (np.asarray(state.length) - length - 1).tolist()
  assert {0, drafter.tree.depth} <= set(accepted)


def test_nothing_later_and_no_other_block_is_seen():
  before = _blocks()
  place = 7
  tokens = _TOKENS[:, :-1].copy()
  tokens[0, place] = (tokens[0, place] + 1) % _VOCAB
  moved = (_blocks(tokens_bt=tokens) != before).any(axis=-1)
  np.testing.assert_array_equal(moved, _only(0, _STARTS[0] == place))
  # A feature is seen by those after it, and not by its own token's block.
  target, trained = _made()
  tapped = np.array(_read(target, trained.module.taps, _TOKENS[:, :-1])[0])
  tapped[0, place] += 1
  moved = (_blocks(tapped_bte=tapped) != before).any(axis=-1)
  np.testing.assert_array_equal(moved, _only(0, _STARTS[0] > place))
  starts = _STARTS.copy()
  starts[1, 3] = 9
  moved = (_blocks(starts_bm=starts) != before).any(axis=-1)
  np.testing.assert_array_equal(moved, _only(1, np.arange(5) == 3))


def _only(row, blocks_m):
  moved = np.zeros((*_STARTS.shape, _AHEAD), bool)
  moved[row, blocks_m] = True
  return moved


def test_masks_of_a_block_see_each_other():
  """Its first output depends on how many masks stand behind."""
  target, trained = _made()
  fewer = trained.module.clone(block_size=_AHEAD)
  head = TargetHead.of(target.transformer, target.params)
  tapped, _ = _read(target, fewer.taps, _TOKENS[:, :-1])
  outputs = []
  for module in (trained.module, fewer):
    context = module.apply({'params': trained.params}, tapped, method='context')
    outputs.append(
      blocks.outputs(
        module, trained.params, head, context, _TOKENS[:, :-1], _STARTS
      )[:, :, 0]
    )
  assert np.abs(outputs[0] - outputs[1]).max(axis=-1).min() > 1e-3


def _loss(weights=_WEIGHTS):
  """(params) -> the loss and the metrics."""
  target, trained = _made()
  head = TargetHead.of(target.transformer, target.params)
  features, hidden = _read(target, trained.module.taps, _TOKENS[:, :-1])
  batch = Batch(_TOKENS, _STARTS, features, None, hidden)
  return lambda params: blocks.dflash(
    trained.module, params, head, batch, weights
  )


def _log_softmax(x):
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_the_loss_is_that_of_each_place():
  """Against NumPy in float64, place by place."""
  target, trained = _made()
  total, metrics = jax.jit(_loss())(trained.params)
  _, hidden = _read(target, (), _TOKENS[:, :-1])
  head = np.asarray(target.params['head'], np.float64)
  log_p = _log_softmax(np.asarray(hidden, np.float64) @ head.T)
  log_q = _log_softmax(np.asarray(_blocks(), np.float64))
  found = {}
  for b, m, j in np.ndindex(*_STARTS.shape, _AHEAD):
    place = _STARTS[b, m] + j  # of the token before
    if place < _LENGTH:
      p, q = log_p[b, place], log_q[b, m, j]
      kl = (np.exp(p) * (p - q)).sum()
      found.setdefault(f'loss_{j + 1}', []).append(kl)
      alpha = np.exp(np.minimum(p, q)).sum()
      found.setdefault(f'alpha_{j + 1}', []).append(alpha)
      hit = p.argmax() == q.argmax()
      found.setdefault(f'agreement_{j + 1}', []).append(hit)
  wanted = {name: np.mean(values) for name, values in found.items()}
  wanted['loss'] = sum(0.7**j * wanted[f'loss_{j + 1}'] for j in range(_AHEAD))
  assert {k: float(v) for k, v in metrics.items()} == pytest.approx(
    wanted, rel=1e-4
  )
  assert total == metrics['loss']


def test_depths_weigh_as_the_expected_length_hangs_on_them():
  """Its gradient is that of the mean length, of drafts that end in the text."""
  target, trained = _made()
  few = Batch(_TOKENS, _STARTS[:, [1, 3, 4]] % 9, *(None,) * 3)
  features, hidden = _read(target, trained.module.taps, _TOKENS[:, :-1])
  batch = few._replace(features=features, hidden=hidden)
  head = TargetHead.of(target.transformer, target.params)
  weights = Weights(loss='lk_alpha', positions='expected_length')
  loss = lambda params: blocks.dflash(
    trained.module, params, head, batch, weights
  )[0]

  def length(params):
    module = trained.module
    context = module.apply({'params': params}, features, method='context')
    hidden_bmjd = blocks.outputs(
      module, params, head, context, _TOKENS[:, :-1], batch.starts
    )
    shape = (*hidden_bmjd.shape[:3], _VOCAB)
    q = jax.nn.softmax(head.logits(hidden_bmjd.reshape(2, 9, -1)), axis=-1)
    place = np.asarray(batch.starts)[:, :, None] + np.arange(_AHEAD)
    p = jax.nn.softmax(head.logits(hidden), axis=-1)
    p = p[np.arange(2)[:, None, None], place]
    alpha = jnp.minimum(p, q.reshape(shape)).sum(axis=-1)
    return -jnp.mean(jnp.sum(jnp.cumprod(alpha, axis=-1), axis=-1))

  found, wanted = (
    jax.jit(jax.grad(each))(trained.params) for each in (loss, length)
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
    found,
    wanted,
  )


def test_parts_of_the_blocks_have_the_loss_and_gradient_of_all(monkeypatch):
  """Five anchors in two parts of three, of which one has one too many."""
  _, trained = _made()
  compute = jax.value_and_grad(_loss(), has_aux=True)
  one = jax.jit(compute)(trained.params)
  monkeypatch.setattr(blocks, '_PART', 3 * (_AHEAD + 1))
  parts = jax.jit(lambda params: compute(params))(trained.params)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
    one,
    parts,
  )


def test_no_gradient_reaches_the_target():
  target, trained = _made()
  config = DistillConfig(
    kind='dflash', ahead=_AHEAD, num_layers=2, length=_LENGTH, groups=3
  )
  loss = distill.make_loss(config, trained.module, target)
  batch = {
    'tokens': _TOKENS,
    'seed': np.arange(_BATCH, dtype=np.uint32),
    'noise': np.zeros(_BATCH, np.float32),
  }
  own, targets = jax.jit(jax.grad(lambda *a: loss(*a)[0], argnums=(0, 1)))(
    trained.params, distill.Frozen(target.params, {}), batch
  )
  assert all(np.any(leaf) for leaf in jax.tree.leaves(own))
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(targets))


@pytest.mark.parametrize(
  ('num_layers', 'count', 'taps'),
  [
    (36, 5, (2, 10, 18, 26, 34)),  # the authors' for Qwen3 8B
    (8, 3, (2, 4, 6)),
    (32, 1, (17,)),
    (3, 3, (2,)),
    (1, 2, (1,)),
  ],
)
def test_taps_are_spread(num_layers, count, taps):
  config = tiny.model(_VOCAB, 0, num_layers=1).config
  config = dataclasses.replace(config, num_layers=num_layers)
  assert make('dflash', config, 3, count).taps == taps
