"""Lookahead's window and pool equal those of an iteration in plain Python.

The reference runs the target for each guess, on the text and the guesses that
the paper lets it see.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from readers import check_greedy
from testing import tiny

import specsamp
from specsamp.decoding.request import Request
from specsamp.drafting import TokenTree, lookahead, lookahead_drafter
from specsamp.errors import UserError
from specsamp.sampling.transforms import SamplingParams

VOCAB = 5
# Prompts of other lengths; the last is shorter than the window.
PROMPTS = [[1, 2, 3, 1, 2], [4, 0, 4, 4, 1, 3], [2]]


@functools.cache
def _target():
  return tiny.model(VOCAB, 28)


@functools.cache
def _next_token(text):
  """Returns the target's most probable next token, from one pass."""
  padded = np.zeros((1, 64), np.int32)
  padded[0, : len(text)] = text
  return int(np.argmax(_logits(_target().params, padded)[0, len(text) - 1]))


@jax.jit
def _logits(params, tokens):
  return _target().transformer.apply({'params': params}, tokens).logits


class _Row:
  """Guesses of a row, in lists."""

  def __init__(self, prompt, levels, window):
    index = np.arange(levels * window) * 7919 % len(prompt)
    self.window = np.asarray(prompt)[index].reshape(levels, window).tolist()
    self.pool = []

  def commit(self, text):
    """Guesses again, after a text whose last token is the root."""
    new = []
    for w in range(len(self.window[0])):
      level_0 = self.window[0][: w + 1]
      column = [level[w] for level in self.window[1:]]
      new.append(_next_token((*text, *level_0, *column)))
      self.pool.append([level[w] for level in self.window] + [new[-1]])
    self.window = [*self.window[1:], new]

  def propose(self, root, count):
    """Returns the newest n-grams of the root with different second tokens."""
    ngrams = {}
    for first, *rest in reversed(self.pool):
      if first == root:
        ngrams.setdefault(rest[0], rest)
    return list(ngrams.values())[:count]


@pytest.mark.parametrize(
  ('shape', 'window'),
  [(TokenTree.branching((3, 1)), 3), (2, 1)],
  ids=['tree', 'one column'],
)
def test_guesses_are_those_of_single_passes(shape, window):
  drafter = lookahead_drafter(shape, window)
  request = Request.make(
    _target(), PROMPTS, drafter,
    sampling=SamplingParams(temperature=[0.0, 1.0, 0.7]), max_new_tokens=30,
    seed=3, stop_tokens=[],
  )  # fmt: skip
  levels, count = drafter.tree.depth, drafter.tree.width
  rows = [_Row(prompt, levels, window) for prompt in PROMPTS]
  state = request.prefill()
  compared = 0
  for _ in range(8):
    before = jax.device_get((state.tokens, state.length))
    accepted = np.asarray(state.stats.num_accepted_per_pos).sum(axis=1)
    state = request.decode(state, rounds=1)
    seen = jax.device_get((state.tokens, state.length))
    accepted = (
      np.asarray(state.stats.num_accepted_per_pos).sum(axis=1) - accepted
    )
    for i, row in enumerate(rows):
      text = before[0][i, : before[1][i]].tolist()
      drafts = row.propose(text[-1], count)
      emitted = seen[0][i, before[1][i] : seen[1][i]].tolist()
      # The longest beginning of a branch that was emitted is accepted.
      runs = [
        next((k for k, at in enumerate(branch) if [at] != emitted[k : k + 1]),
             levels)
        for branch in drafts
      ]  # fmt: skip
      assert accepted[i] == max(runs, default=0)
      compared += bool(drafts)
      row.commit(text)
      np.testing.assert_array_equal(state.drafter.window[i], row.window)
      pool = np.asarray(state.drafter.pool[i])[: len(row.pool)]
      np.testing.assert_array_equal(pool, row.pool)
  assert compared > 3
  assert np.asarray(state.stats.num_accepted_per_pos).sum() > 0


def test_the_oldest_are_forgotten(monkeypatch):
  monkeypatch.setattr(lookahead, '_POOLED', 2)
  drafter = lookahead_drafter(2, 1)
  state = lookahead.LookaheadState(
    window=np.zeros((1, 2, 1), np.int32),
    # The third round's replace the first's.
    pool=np.asarray([[[1, 3, 3], [1, 2, 2]]], np.int32),
    rounds=np.asarray([3], np.int32),
  )

  @jax.jit
  def drafted(state):
    tokens, length = jnp.asarray([[4, 1, 0]]), jnp.asarray([2])
    return drafter.propose(state, tokens, length, None, 0)[0]

  assert drafted(state).tokens.tolist() == [[1, 3, 3]]
  # A slot that was not written yet is empty.
  first = state.replace(
    pool=np.asarray([[[0, 2, 2], [1, 3, 3]]], np.int32),
    rounds=np.asarray([1], np.int32),
  )
  assert drafted(first).valid.tolist() == [[True, False, False]]


def test_extra_tokens_never_touch_the_text():
  """The greedy row is the target's text. A row is the same alone, and with a
  row for each path."""
  temperatures, budgets = [0.0, 1.0, 0.7], [20, 9, 12]

  def run(rows, **options):
    return specsamp.generate(
      _target(),
      [PROMPTS[i] for i in rows],
      drafter=lookahead_drafter(2, 1),
      sampling=SamplingParams(temperature=[temperatures[i] for i in rows]),
      max_new_tokens=[budgets[i] for i in rows],
      seed=[5 + i for i in rows],
      stop_tokens=[],
      **options,
    ).tokens

  together = run(range(3))
  check_greedy(_target(), PROMPTS[:1], together[:1])
  assert run(range(3), tree_attention=False) == together
  assert run([2]) == together[2:]


@pytest.mark.parametrize(
  ('shape', 'window', 'message'),
  [
    (3, 0, 'window: got 0, expected an integer'),
    (3, 2.5, 'window: got 2.5, expected an integer'),
    (TokenTree.branching((1, 2)), 7, 'parts at the root only'),
  ],
)
def test_invalid_arguments(shape, window, message):
  with pytest.raises(UserError, match=message):
    lookahead_drafter(shape, window)
