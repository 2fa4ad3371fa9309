"""EAGLE-3 computes in training as it does when it drafts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

from specsamp.drafting import TokenTree
from specsamp.drafting.drafter import after_prompts
from specsamp.drafting.features import TargetHead, row_tokens
from specsamp.drafting.trained import trained_drafter
from specsamp.errors import UserError
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams
from specsamp.training import distill, draft_vocab, feature_cache
from specsamp.training.distill_config import DistillConfig
from specsamp.training.objectives import eagle3

VOCAB, LENGTH, STEPS = 11, 12, 3


@functools.cache
def _made(positions='rotary', num_layers=1):
  """Returns a target, and a drafter that cannot draft one of its tokens."""
  target = tiny.model(VOCAB, 1, num_layers=7, positions=positions)
  return target, tiny.trained(
    target, 'eagle3', num_layers=num_layers, draft_vocab=VOCAB - 1
  )


def _text(seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(VOCAB, size=(4, LENGTH), dtype=np.int32)


@functools.partial(jax.jit, static_argnums=0)
def _read(transformer, params, tokens):
  return feature_cache.compute(transformer, params, tokens)


def _tapped(target, trained, tokens):
  transformer = target.transformer.clone(taps=trained.module.taps)
  read = _read(transformer, target.params, tokens)
  assert read.shape[-1] == 4 * target.config.width
  return feature_cache.split(read, target.config.width)


@functools.partial(jax.jit, static_argnums=(0, 5))
def _outputs(module, params, head, features, texts, counts):
  tokens, starts = texts
  outputs = eagle3.unrolled(
    module, params, head, features, tokens, starts, counts
  )
  return [
    module.apply({'params': params}, each, method='logits') for each in outputs
  ]


def _logits(made, features, tokens, starts, counts=None):
  """Returns the logits of each step from these starts: [B, M_j, V]."""
  target, trained = made
  starts = np.asarray(starts, np.int32)
  return _outputs(
    trained.module,
    trained.params,
    TargetHead.of(target.transformer, target.params),
    features,
    (tokens, starts),
    counts or (starts.shape[1],) * STEPS,
  )


@pytest.mark.parametrize(
  ('positions', 'num_layers'), [('rotary', 1), ('relative', 2)]
)
def test_each_step_equals_that_of_drafting(positions, num_layers):
  """The prompts have several lengths, one of them a single token."""
  target, trained = made = _made(positions, num_layers)
  drafter = trained_drafter(trained, target, TokenTree.chain(STEPS))
  assert drafter.taps == trained.module.taps == (2, 3, 4)
  length = np.array([3, 5, 1, 8], np.int32)

  @jax.jit
  def draft(drafter, tokens, features):
    state = after_prompts(drafter, tokens, length, features, LENGTH + STEPS)
    keys = draw.row_keys(jnp.arange(4, dtype=jnp.int32))
    sampling = SamplingParams(temperature=3.0).broadcast(4)
    return drafter.propose(state, tokens, length, sampling, keys)[0]

  text = _text()
  drafted = draft(drafter, text, _tapped(target, trained, text)[0])
  for row, root in enumerate(length - 1):
    text[row, root : root + STEPS + 1] = drafted.tokens[row]
  features = _tapped(target, trained, text)[0]
  # The first start is compared. Others are computed too, fewer in each step.
  starts = np.stack([np.roll(np.arange(LENGTH), -root) for root in length - 1])
  logits = _logits(made, features, text, starts, (LENGTH, 9, 8))
  for j in range(STEPS):
    log_q = jax.nn.log_softmax(logits[j][:, 0] / 3)
    np.testing.assert_allclose(np.exp(log_q), drafted.q[:, j], atol=1e-5)
  assert np.ptp(drafted.q) > 0.3 and not np.any(drafted.q[..., VOCAB - 2])
  assert np.all(np.asarray(logits[0])[..., VOCAB - 2] == np.float32(-1e30))


# The loss.


def _config(**changes):
  values = dict(
    kind='eagle3', ahead=3, draft_vocab=VOCAB - 1, noise=0.0, length=LENGTH
  )
  return DistillConfig(**(values | changes))


def _batch(tokens):
  zeros = np.zeros(len(tokens), np.float32)
  seeds = np.arange(len(tokens), dtype=np.uint32)
  return {'tokens': tokens, 'seed': seeds, 'noise': zeros}


def _split(params):
  chosen = {'draft_rows': params['draft_rows']}
  return {k: v for k, v in params.items() if k not in chosen}, chosen


@pytest.mark.parametrize(
  'changes',
  [
    dict(loss='lk_lambda', position_weights='expected_length', retention=0.8),
    dict(loss='text'),
  ],
  ids=lambda changes: changes.get('loss', 'kl'),
)
def test_all_but_the_target_has_a_gradient(changes):
  target, trained = _made()
  params, chosen = _split(trained.params)
  loss = distill.make_loss(_config(**changes), trained.module, target)
  both = jax.jit(
    jax.grad(
      lambda params, target_params: loss(
        params, (target_params, chosen), _batch(_text())
      )[0],
      argnums=(0, 1),
    )
  )
  own, targets = both(params, target.params)
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(targets))
  for path, leaf in jax.tree_util.tree_leaves_with_path(own):
    assert np.any(leaf), path


def test_the_loss_is_the_sum_over_steps():
  """In NumPy: the KL from p on the tokens that it can draft, decayed."""
  target, trained = made = _made()
  params, chosen = _split(trained.params)
  text = _text()
  config = _config(decay=0.5)
  loss = jax.jit(distill.make_loss(config, trained.module, target))
  total, metrics = loss(params, (target.params, chosen), _batch(text))

  read = text[:, :-1]
  features, hidden = _tapped(target, trained, read)
  logits = _logits(made, features, read, np.tile(np.arange(LENGTH - 1), (4, 1)))
  head = np.asarray(target.params['head'])
  p_logits = np.asarray(hidden @ head.T, np.float64)
  p = np.exp(p_logits - p_logits.max(-1, keepdims=True))
  p /= p.sum(-1, keepdims=True)
  lost = VOCAB - 2
  assert 0 < (p.argmax(-1) == lost).mean() < 0.7
  expected = 0
  for j in range(3):
    divergences, alphas, hits = [], [], []
    for row, start in np.ndindex(4, LENGTH - 1 - j):
      q = np.exp(np.asarray(jax.nn.log_softmax(logits[j][row, start])))
      p_v = p[row, start + j]
      alphas.append(np.minimum(p_v, q).sum())
      hits.append(q.argmax() == p_v.argmax())
      if p_v.argmax() != lost:
        kept = np.delete(p_v, lost)
        kept /= kept.sum()
        divergences.append((kept * np.log(kept / np.delete(q, lost))).sum())
    expected += 0.5**j * np.mean(divergences)
    assert metrics[f'agreement_{j + 1}'] == pytest.approx(np.mean(hits))
    assert metrics[f'alpha_{j + 1}'] == pytest.approx(np.mean(alphas), rel=1e-4)
  assert total == pytest.approx(expected, rel=1e-4)


# The tokens that can be drafted.


def test_the_most_frequent_tokens_have_rows(tmp_path):
  text = np.array([[7, 7, 7, 2], [2, 9, 0, 5]])
  rows = draft_vocab.choose_rows(tmp_path, text, VOCAB, 4)
  # Of 0, 5 and 9 the first ones.
  assert rows.tolist() == [0, 4, 1, 4, 4, 2, 4, 3, 4, 4, 4]
  tokens = row_tokens(jnp.asarray(rows), 4)
  np.testing.assert_array_equal(tokens, [0, 2, 5, 7])
  # A run keeps its tokens, whatever the text is now.
  again = draft_vocab.choose_rows(tmp_path, text + 1, VOCAB, 4)
  np.testing.assert_array_equal(again, rows)
  with pytest.raises(UserError, match='got 4 tokens, expected 5'):
    draft_vocab.choose_rows(tmp_path, text, VOCAB, 5)
