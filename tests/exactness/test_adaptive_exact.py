"""Adaptive draft lengths are lossless: enumerated over several rounds.

Every draft of every round is enumerated, together with the policy's counts,
which decide the next draft length. The policy, the cut and the rule are the
production code, in float64.
"""

import collections
import dataclasses

import jax
import numpy as np
import pytest

from specsamp import verification
from specsamp.conformance import enumeration
from specsamp.drafting import TokenTree, adaptive
from specsamp.drafting.draft import Draft
from specsamp.drafting.policy import Policy

LENGTH = 4
COSTS = np.asarray((1.0, 1.3, 1.7), np.float32)


def conditionals(seed, vocab):
  """Returns p and q of the next token, by the last two tokens of a text."""
  rng = np.random.default_rng(seed)
  shape = (vocab + 1, vocab + 1, vocab)
  p = enumeration.normalize(rng.gamma(0.7, size=shape) + 1e-3)
  q = enumeration.normalize(
    0.6 * p + 0.4 * rng.dirichlet(np.ones(vocab), shape[:2])
  )
  return p, q


def after(probs, text):
  """Returns the distribution of the token after a text."""
  return probs[tuple((-1, -1, *text)[-2:])]


def table_after(text, depth, p, q, width):
  """Returns the table of a round after a text."""
  vocab = p.shape[-1]

  def at_depth(probs, i):
    shape = (vocab,) * i
    array = np.zeros((*shape, vocab))
    for context in np.ndindex(shape):
      array[context] = after(probs, text + context)
    return array

  return enumeration.Table(
    str(text),
    [at_depth(p, i) for i in range(depth + 1)],
    [at_depth(q, i) for i in range(depth)],
    [np.ones((vocab,) * i + (width,), bool) for i in range(depth)],
  )


def joint(case, cut):
  """Returns the probability of each text, and of each chosen depth.

  Args:
    case: a key of `CASES`.
    cut: function of a tree, a law and drafts that returns the cut drafts.
  """
  name, tree, law, vocab = CASES[case]
  verifier, depths = verification.make(name), (0, 1, 2)
  p, q = conditionals(0, vocab)
  states = collections.Counter()
  memory = {}

  def keep(text, policy, chance):
    leaves = jax.tree.map(np.asarray, policy)
    key = text, tuple(leaf.tobytes() for leaf in jax.tree.leaves(leaves))
    memory[key] = leaves
    states[key] += chance

  keep((), Policy.initial(1, tree.depth), 1.0)
  ended, chosen = collections.Counter(), collections.Counter()
  while states:
    # The shortest texts first: all that leads to them has then been added.
    shortest = min(len(text) for text, _ in states)
    now = {
      key: states.pop(key) for key in list(states) if len(key[0]) == shortest
    }
    by_depth = collections.defaultdict(list)
    for key, chance in now.items():
      index = memory[key].choose(depths, COSTS, np.asarray([True]))
      depth = depths[int(index)]
      chosen[depth] += chance
      by_depth[depth].append((key, chance))
    for depth, group in by_depth.items():
      part = tree.first(sum(at <= depth for at in tree.depths))
      tables = [
        table_after(key[0], depth, p, q, tree.width) for key, _ in group
      ]
      drafts = [
        cut(part, law, enumeration.enumerate_drafts(table, part, law))
        for table in tables
      ]
      outcomes = enumeration.run_tables(verifier, tables, part, law, drafts)
      for (key, chance), outcome in zip(group, outcomes, strict=True):
        _follow(key[0], memory[key], chance, outcome, law, keep, ended)
  return ended, chosen


def _follow(text, policy, chance, outcome, law, keep, ended):
  """Adds the texts that a round makes of one text."""
  rows, tree = outcome.drafts, outcome.tree
  for row, node in np.argwhere(outcome.stop > 0):
    accepted = [
      int(rows.tokens[row, n]) for n in enumeration.context(tree, node)
    ]
    draft = Draft(
      tokens=rows.tokens[[row]],
      q=rows.q[[row]],
      tree=tree,
      law=law,
      valid=rows.valid[[row]],
    )
    seen = policy.after_round(
      draft, tree.depth, np.asarray([len(accepted)]), np.asarray([True])
    )
    for token in np.flatnonzero(outcome.leave[row, node] > 0):
      longer = (*text, *accepted, int(token))
      mass = chance * rows.weight[row] * outcome.stop[row, node]
      mass *= outcome.leave[row, node, token]
      if len(longer) < LENGTH:
        keep(longer, seen, mass)
      else:
        ended[longer[:LENGTH]] += mass


def distance(case, ended):
  """Returns the total variation from the target's distribution."""
  vocab = CASES[case][-1]
  p, _ = conditionals(0, vocab)
  total = 0.0
  for text in np.ndindex((vocab,) * LENGTH):
    chance = np.prod([after(p, text[:i])[text[i]] for i in range(LENGTH)])
    total += abs(ended[text] - chance)
  return total / 2


CASES = {
  'block': ('block', TokenTree.chain(2), 'iid', 3),
  'multi_candidate': (
    'multi_candidate',
    TokenTree.branching((2, 1)),
    'without_replacement',
    2,
  ),
}


def while_confident(tree, law, drafts):
  """Cuts behind paths of a probability below a half."""
  draft = Draft(drafts.tokens, drafts.q, tree, law, drafts.valid)
  valid = np.asarray(adaptive.while_confident(draft, 0.5).valid)
  return dataclasses.replace(drafts, valid=valid)


@pytest.mark.parametrize('case', CASES)
def test_texts_of_adaptive_lengths_follow_the_target(case):
  with jax.enable_x64(True):
    ended, chosen = joint(case, while_confident)
  assert len(chosen) > 1  # or else nothing was adaptive
  assert distance(case, ended) < 1e-12


def _paths(tree, drafts):
  """Returns the probability of each node's path and token, [B, N]."""
  draft = Draft(drafts.tokens, drafts.q, tree, 'iid', drafts.valid)
  return np.asarray(adaptive.path_probs(draft))


def cut_on_the_token_itself(tree, law, drafts):
  """Drops a token because it is improbable itself."""
  if not tree.depth:
    return drafts
  return dataclasses.replace(
    drafts, valid=drafts.valid & (_paths(tree, drafts) >= 0.4)
  )


def keep_the_likelier(tree, law, drafts):
  """Keeps the more probable of two drawn tokens, as if it alone was drawn."""
  if tree.width < 2:
    return drafts
  paths = _paths(tree, drafts)
  first, second = tree.children(0)
  valid = drafts.valid.copy()
  valid[:, first] &= paths[:, first] >= paths[:, second]
  valid[:, second] &= ~valid[:, first]
  return dataclasses.replace(drafts, valid=valid)


def argmax_over_live_paths(tree, law, drafts):
  """Chooses the draft length by the probabilities of the drawn tokens."""
  if not tree.depth:
    return drafts
  goods = np.cumsum(_paths(tree, drafts), axis=1) / COSTS[: tree.size]
  best = goods.argmax(axis=1)[:, None]
  return dataclasses.replace(
    drafts, valid=drafts.valid & (np.arange(tree.size)[None] <= best)
  )


@pytest.mark.parametrize(
  ('cut', 'case'),
  [
    (cut_on_the_token_itself, 'block'),
    (keep_the_likelier, 'multi_candidate'),
    (argmax_over_live_paths, 'block'),
  ],
)
def test_choices_that_look_at_the_token_are_caught(cut, case):
  with jax.enable_x64(True):
    ended, _ = joint(case, cut)
  assert distance(case, ended) > 1e-3
