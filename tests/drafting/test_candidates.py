"""Candidates of all drafters are drawn from the q that they report."""

import itertools

import jax
import numpy as np
import pytest
import scipy.stats

from specsamp.drafting import candidates
from specsamp.sampling import draw, transforms
from specsamp.sampling.transforms import SamplingParams

ROWS, VOCAB = 30_000, 5
_pick = jax.jit(candidates.pick, static_argnums=(3, 5))


def _picked(law, count, sampling):
  """Returns candidates of rows with different seeds, and q of the first."""
  logits = np.float32([1.0, 0.3, -0.5, 0.8, -1.2])
  keys = draw.row_keys(np.arange(ROWS, dtype=np.int32))
  uniforms = draw.uniforms(keys, count)
  tokens, valid, q = _pick(
    np.broadcast_to(logits, (ROWS, 1, VOCAB)),
    uniforms[:, None],
    sampling.broadcast(ROWS),
    law,
  )
  # Greedy rows report temperature 1.
  shown = sampling if sampling.temperature else SamplingParams()
  expected = transforms.probabilities(logits[None], shown.broadcast(1))
  np.testing.assert_allclose(q[0, 0], expected[0], rtol=1e-6)
  return np.asarray(tokens)[:, 0], np.asarray(valid)[:, 0], np.asarray(q)[0, 0]


def _in_turn(q, tokens):
  """Returns the probability of tokens drawn without replacement."""
  chance, left = 1.0, 1.0
  for token in tokens:
    chance *= q[token] / left
    left -= q[token]
  return chance


@pytest.mark.parametrize(
  ('law', 'count'),
  [('iid', 2), ('without_replacement', 2), ('top_plus_one', 3)],
)
@pytest.mark.parametrize(
  'sampling',
  [SamplingParams(temperature=0.7), SamplingParams(1.3, top_k=4, top_p=0.9)],
  ids=['temperature', 'cuts'],
)
def test_they_are_drawn_from_the_q_that_is_reported(law, count, sampling):
  tokens, valid, q = _picked(law, count, sampling)
  assert valid.all()
  q = q.astype(np.float64) / q.sum(dtype=np.float64)
  every = np.array(list(itertools.product(range(VOCAB), repeat=count)))
  if law == 'iid':
    chances = q[every].prod(axis=1)
  elif law == 'top_plus_one':
    top = np.argsort(-q)[: count - 1]
    others = np.where(np.isin(np.arange(VOCAB), top), 0, q)
    chances = (every[:, :-1] == top).all(axis=1) * others[every[:, -1]]
  else:
    alike = every[:, 0] == every[:, 1]
    chances = np.where(alike, 0, [_in_turn(q, pair) for pair in every])
  place = tokens @ VOCAB ** np.arange(count)[::-1]
  counts = np.bincount(place, minlength=len(every))
  possible = chances > 0
  assert not counts[~possible].any()
  expected = chances[possible] / chances.sum() * ROWS
  assert scipy.stats.chisquare(counts[possible], expected).pvalue > 1e-3


@pytest.mark.parametrize('law', ['without_replacement', 'top_plus_one'])
def test_too_few_tokens_give_fewer_candidates(law):
  tokens, valid, q = _picked(law, 3, SamplingParams(top_k=2))
  assert (q > 0).sum() == 2
  assert valid[:, :2].all() and not valid[:, 2].any()
  assert (tokens[:, 0] != tokens[:, 1]).all()


def test_nodes_that_keep_fewer_candidates_end_with_a_draw():
  """Nodes of a level may have different numbers of children."""
  logits = np.broadcast_to(np.float32([1.0, 0.3, -0.5, 0.8, -1.2]), (400, 3, 5))
  uniforms = draw.uniforms(draw.row_keys(np.arange(400, dtype=np.int32)), 9)
  args = SamplingParams().broadcast(400), 'top_plus_one', None, (1, 2, 3)
  tokens, valid, _ = map(
    np.asarray, _pick(logits, uniforms.reshape(400, 3, 3, 2), *args)
  )
  for node, (drawn, top) in enumerate([(0, []), (1, [0]), (2, [0, 3])]):
    assert (tokens[:, node, :drawn] == np.array(top)).all()
    assert set(np.unique(tokens[:, node, drawn])) == set(range(5)) - set(top)
    assert valid[:, node, : drawn + 1].all()


@pytest.mark.parametrize(
  'law', ['iid', 'without_replacement', 'top_plus_one', 'deterministic']
)
def test_greedy_rows_take_the_most_probable(law):
  tokens, valid, q = _picked(law, 3, SamplingParams(temperature=0.0))
  assert valid.all() and (tokens == [0, 3, 1]).all()
