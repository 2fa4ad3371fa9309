"""The law of texts whose draft lengths are chosen: enumerated over rounds.

Every draft of every round is written out, and with it what the policy has seen,
which decides how much the next round drafts. The policy, the cut and the rule
are those of production, in float64.
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
  """p and q of the next token, by the last two of a text."""
  rng = np.random.default_rng(seed)
  shape = (vocab + 1, vocab + 1, vocab)
  p = enumeration.normalize(rng.gamma(0.7, size=shape) + 1e-3)
  q = enumeration.normalize(
    0.6 * p + 0.4 * rng.dirichlet(np.ones(vocab), shape[:2])
  )
  return p, q


def after(law, text):
  """The law of the token after a text."""
  return law[tuple((-1, -1, *text)[-2:])]


def tables_of(text, depth, p, q, width):
  """What a round after `text` draws from."""
  vocab = p.shape[-1]

  def of(law, i):
    shape = (vocab,) * i
    array = np.zeros((*shape, vocab))
    for context in np.ndindex(shape):
      array[context] = after(law, text + context)
    return array

  return enumeration.Table(
    str(text),
    [of(p, i) for i in range(depth + 1)],
    [of(q, i) for i in range(depth)],
    [np.ones((vocab,) * i + (width,), bool) for i in range(depth)],
  )


def joint(verifier, tree, law, p, q, cut, choose):
  """The law of the first tokens: {text: chance}, and the depths chosen."""
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
    # The shortest first: what leads to one state is then all there.
    shortest = min(len(text) for text, _ in states)
    now = {
      key: states.pop(key) for key in list(states) if len(key[0]) == shortest
    }
    by_depth = collections.defaultdict(list)
    for key, chance in now.items():
      depth = choose(memory[key])
      chosen[depth] += chance
      by_depth[depth].append((key, chance))
    for depth, group in by_depth.items():
      part = tree.first(sum(at <= depth for at in tree.depths))
      tables = [tables_of(key[0], depth, p, q, tree.width) for key, _ in group]
      drafts = [
        cut(part, law, enumeration.enumerate_drafts(table, part, law))
        for table in tables
      ]
      rounds = enumeration.run(verifier, tables, part, law, drafts)
      for (key, chance), round_ in zip(group, rounds, strict=True):
        _follow(key, memory[key], chance, round_, part, law, keep, ended)
  return ended, chosen


def _follow(key, policy, chance, round_, tree, law, keep, ended):
  """What a round makes of a state."""
  rows = round_.drafts
  for row, node in np.argwhere(round_.stop > 0):
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
    for token in np.flatnonzero(round_.leave[row, node] > 0):
      text = (*key[0], *accepted, int(token))
      mass = chance * rows.weight[row] * round_.stop[row, node]
      mass *= round_.leave[row, node, token]
      if len(text) < LENGTH:
        keep(text, seen, mass)
      else:
        ended[text[:LENGTH]] += mass


def while_confident(tree, law, drafts):
  """Cuts behind paths that are less likely than half."""
  draft = Draft(drafts.tokens, drafts.q, tree, law, drafts.valid)
  valid = np.asarray(adaptive.while_confident(draft, 0.5).valid)
  return dataclasses.replace(drafts, valid=valid)


def by_policy(costs, depths):
  def choose(policy):
    return depths[int(policy.choose(depths, costs, np.asarray([True])))]

  return choose


def distance(ended, p):
  """Half of the sum of differences from the target's law."""
  vocab = p.shape[-1]
  total = 0.0
  for text in np.ndindex((vocab,) * LENGTH):
    chance = np.prod([after(p, text[:i])[text[i]] for i in range(LENGTH)])
    total += abs(ended[text] - chance)
  return total / 2


CASES = {
  'token': ('token', TokenTree.chain(2), 'iid', 3),
  'block': ('block', TokenTree.chain(2), 'iid', 3),
  'multi_candidate': (
    'multi_candidate',
    TokenTree.branching((2, 1)),
    'without_replacement',
    2,
  ),
  'traversal': ('traversal', TokenTree.branching((2, 1)), 'iid', 2),
}


@pytest.mark.parametrize('case', CASES)
def test_texts_of_chosen_depths_are_the_targets(case):
  name, tree, law, vocab = CASES[case]
  p, q = conditionals(0, vocab)
  with jax.enable_x64(True):
    ended, chosen = joint(
      verification.make(name),
      tree,
      law,
      p,
      q,
      while_confident,
      by_policy(COSTS, (0, 1, 2)),
    )
  assert len(chosen) > 1  # else nothing was chosen
  assert distance(ended, p) < 1e-12


def _paths(tree, drafts):
  """[B, N]: the probability of each node's path, its own token included."""
  draft = Draft(drafts.tokens, drafts.q, tree, 'iid', drafts.valid)
  return np.asarray(adaptive.path_probs(draft))


def cut_on_the_token_itself(tree, law, drafts):
  """Drops a token for being unlikely itself."""
  if not tree.depth:
    return drafts
  return dataclasses.replace(
    drafts, valid=drafts.valid & (_paths(tree, drafts) >= 0.4)
  )


def keep_the_likelier(tree, law, drafts):
  """Of what was drawn keeps the more probable, as if it alone was drawn."""
  if tree.width < 2:
    return drafts
  paths = _paths(tree, drafts)
  first, second = tree.children(0)
  valid = drafts.valid.copy()
  valid[:, first] &= paths[:, first] >= paths[:, second]
  valid[:, second] &= ~valid[:, first]
  return dataclasses.replace(drafts, valid=valid)


def argmax_over_live_paths(tree, law, drafts):
  """Judges as many tokens as are best by what the tokens turned out to be."""
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
    (cut_on_the_token_itself, 'token'),
    (keep_the_likelier, 'multi_candidate'),
    (argmax_over_live_paths, 'token'),
  ],
)
def test_choices_that_look_at_the_token_are_caught(cut, case):
  name, tree, law, vocab = CASES[case]
  p, q = conditionals(0, vocab)
  with jax.enable_x64(True):
    ended, _ = joint(
      verification.make(name), tree, law, p, q, cut, by_policy(COSTS, (0, 1, 2))
    )
  assert distance(ended, p) > 1e-3
