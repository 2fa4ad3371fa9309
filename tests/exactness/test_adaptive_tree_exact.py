"""Adaptive tree sizes are lossless: enumerated over rounds of two rows.

The size of both rows' trees depends on both drafts and on all earlier rounds.
Every pair of outcomes is followed with its past. Growth, cut, choice and rule
are the production code, and the rule computes in float64.
"""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp import SamplingParams, verification
from specsamp.conformance import enumeration
from specsamp.drafting import DynamicTree, growth
from specsamp.drafting.adaptive_tree import Past, expected_tokens

VOCAB, LENGTH, DEPTH = 3, 3, 2
TREE, SIZES = DynamicTree.of(6, DEPTH, 2), (1, 3, 6)
COSTS = jnp.asarray((1.0, 1.75, 2.1))


@pytest.fixture(scope='module', autouse=True)
def in_float64():
  with jax.enable_x64(True):
    yield


class Row:
  """The distributions of one row, and all rounds that it can take.

  Attributes:
    texts: texts that are not done, each a tuple of tokens.
    probs: probability of each whole text under the target.
    path_probs: [texts, N], those of the drafts.
    after: by peeking, text and size: a dict of the texts after the round and
      their probabilities.
  """

  def __init__(self, seed):
    rng = np.random.default_rng(seed)
    lengths = range(LENGTH + DEPTH + 1)
    tokens = lambda n: itertools.product(range(VOCAB), repeat=n)
    every = [text for n in lengths for text in tokens(n)]
    draws = enumeration.normalize(rng.gamma(0.7, size=(len(every), VOCAB)))
    p = dict(zip(every, draws, strict=True))
    # Some drafts are certain and others are not.
    flat = draws ** rng.choice([0.2, 2], (len(every), 1))
    q = dict(zip(every, enumeration.normalize(flat), strict=True))
    self.texts = [text for text in every if len(text) < LENGTH]
    self.probs = {
      text: np.prod([p[text[:i]][text[i]] for i in range(LENGTH)])
      for text in tokens(LENGTH)
    }
    draft = self._drafts(q)
    self.path_probs = draft.path_probs
    self.after = {True: {}, False: {}}
    self._add_rounds(draft, p)

  def _drafts(self, q):
    """Returns the draft after each text."""

    def logits(path_twd):
      return jnp.log(
        jnp.asarray(
          [
            [q[text + tuple(map(int, path))] for path in paths]
            for text, paths in zip(self.texts, path_twd, strict=True)
          ],
          jnp.float32,
        )
      )

    def feed(path_twd, level):
      path_twd = np.concatenate(
        [level.of_parents(path_twd), level.tokens[:, :, None]], axis=2
      )
      return path_twd, logits(path_twd)

    count = len(self.texts)
    sampling = SamplingParams().broadcast(count)
    none = jnp.zeros((count, 1, 0), jnp.int32)
    root = jnp.zeros((count, 1), jnp.int32)
    return growth.grow_dynamic(TREE, sampling, root, logits(none), feed, none)[
      0
    ]

  def _add_rounds(self, draft, p):
    rule, leaves = verification.make('naive'), {}
    parents, tokens = np.asarray(draft.parents), np.asarray(draft.tokens)
    paths = [[text] for text in self.texts]
    for row, path in enumerate(paths):
      for node in range(1, TREE.size):
        path.append((*path[parents[row, node]], int(tokens[row, node])))
    p_tnv = jnp.asarray([[p[text] for text in path] for path in paths])
    for size in SIZES:
      part, p_part = draft.first(size), p_tnv[:, :size]
      stop = np.asarray(rule.stop_probs(part, p_part))
      at = lambda node, part=part, p_part=p_part: rule.leave_probs(
        part, p_part, jnp.full(len(paths), node, jnp.int32)
      )
      leaves[size] = np.stack([at(node) for node in range(size)], axis=1)
      for peeks, after in self.after.items():
        leave = leaves[size].copy()
        if peeks:  # a rejection undoes the draft that was rejected
          leave[:, 0] = leaves[1][:, 0]
        for row, text in enumerate(self.texts):
          ends = collections.Counter()
          for node, token in np.ndindex(size, VOCAB):
            longer = (*paths[row][node], token)[:LENGTH]
            ends[longer] += stop[row, node] * leave[row, node, token]
          after[text, size] = ends


@jax.jit
@jax.vmap
def choose(past, path_probs_bn, active_b):
  """Returns the index of the size, and the past after the round."""
  tokens_k = expected_tokens(path_probs_bn, active_b, SIZES)
  chosen = past.choose(tokens_k, COSTS)
  return chosen, past.after_round(tokens_k[chosen], COSTS[chosen])


def joint(rows, past=(0, 0), peeks=False):
  """Returns the probability of each pair of texts, and of each size.

  `past` are tokens and milliseconds of earlier requests.
  """
  now, chosen = {((), (), *past): 1.0}, collections.Counter()
  ended = collections.Counter()
  while now:
    pairs = [key[:2] for key in now]
    active = np.asarray([[len(t) < LENGTH for t in pair] for pair in pairs])
    place = lambda row, text: row.texts.index(text) if text in row.texts else 0
    at = np.asarray(
      [[place(r, t) for r, t in zip(rows, ts, strict=True)] for ts in pairs]
    )
    path_probs = np.stack(
      [np.asarray(row.path_probs)[at[:, i]] for i, row in enumerate(rows)], 1
    )
    past = Past(*np.asarray([key[2:] for key in now], np.float32).T)
    index, past = jax.tree.map(np.asarray, choose(past, path_probs, active))
    later = collections.Counter()
    for i, (pair, chance) in enumerate(zip(pairs, now.values(), strict=True)):
      size = SIZES[index[i]]
      chosen[size] += chance
      ways = [
        row.after[peeks].get((text, size), {text: 1.0})
        for row, text in zip(rows, pair, strict=True)
      ]
      for (first, a), (second, b) in itertools.product(
        ways[0].items(), ways[1].items()
      ):
        if len(first) == len(second) == LENGTH:
          ended[first, second] += chance * a * b
        elif a * b:
          later[first, second, past.tokens[i], past.ms[i]] += chance * a * b
    now = later
  return ended, chosen


def distance(rows, ended):
  """Returns the total variation from two independent samples."""
  return 0.5 * sum(
    abs(ended[first, second] - a * b)
    for (first, a), (second, b) in itertools.product(
      rows[0].probs.items(), rows[1].probs.items()
    )
  )


@pytest.fixture(scope='module')
def rows():
  return Row(0), Row(1)


def test_pairs_of_texts_follow_the_target(rows):
  choices = []
  for past in ((0, 0), (10, 5), (10, 20)):
    ended, chosen = joint(rows, past)
    assert abs(sum(ended.values()) - 1) < 1e-12
    assert distance(rows, ended) < 1e-12
    choices.append([chosen[size] for size in SIZES])
  # After fast rounds small trees pay, and after slow ones large trees.
  assert all(choices[0])
  assert choices[1][0] > choices[0][0] and choices[2][2] > choices[0][2]


def test_a_size_that_depends_on_the_verdict_fails(rows):
  assert distance(rows, joint(rows, peeks=True)[0]) > 1e-2
