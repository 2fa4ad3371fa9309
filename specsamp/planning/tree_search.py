"""Which tree to draft: the best static shape for a budget, from measurements.

Sequoia, Chen et al. 2402.12374, section 3. It rests on the paper's positional
acceptance assumption: at any node, the chance that the child of rank k (the
k-th of its siblings, in the order of the nodes) is the accepted one is
`acceptance[k]`, whatever the path to the node and however many siblings come
after. Verifiers that try the children in turn are blind to those that come
after; under one that looks at how many there are, such as K-SEQ, acceptance
holds for the number it was measured with.

A node is reached with the product of the chances along its path. A round emits
the tokens of the nodes it reaches and one more, the bonus or residual token,
which the root stands for: so its expected tokens are the sum over all nodes.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from specsamp.drafting.draft import TokenTree


def best_tree(
  acceptance: Sequence[float], num_nodes: int, max_depth: int | None = None
) -> TokenTree:
  """The tree of the most expected tokens a round, by dynamic programming.

  Exact, also where acceptance is not decreasing. Takes time in proportion to
  `ranks * levels * num_nodes ** 2`, where levels end where one more changes
  nothing.

  Args:
    acceptance: [K], chance that the child of rank k is the accepted one; a
      node gets K children at most.
    num_nodes: N, the most nodes, the root included.
    max_depth: the most levels below the root, None for any number.

  Returns:
    Of the trees of the highest value the smallest, and of those the
    shallowest; numbered breadth first, so siblings are consecutive.

  Raises:
    ValueError: acceptance that is not a vector of chances that sum to at most
      1, no nodes, or a negative depth.
  """
  values, choices = _solve(acceptance, num_nodes, max_depth)
  return _tree(values, choices, len(choices), num_nodes)


def expected_tokens(tree: TokenTree, acceptance: Sequence[float]) -> float:
  """Tokens a round, the bonus or residual token included.

  Args:
    tree: any tree; the rank of a node is its place among its siblings.
    acceptance: [K], chance that the child of rank k is the accepted one.

  Raises:
    ValueError: acceptance that is not a vector of chances that sum to at most
      1, or a node of more children than ranks were measured.
  """
  chance_k = _checked(acceptance)
  reached_n = np.ones(tree.size)
  for node in tree.internal:
    children = list(tree.children(node))
    if len(children) > len(chance_k):
      raise ValueError(
        f'node {node} has {len(children)} children, but acceptance covers '
        f'{len(chance_k)} ranks'
      )
    reached_n[children] = reached_n[node] * chance_k[: len(children)]
  return float(reached_n.sum())


def fastest_tree(
  acceptance: Sequence[float],
  pass_ms: Mapping[int, float],
  draft_ms: float,
  max_depth: int | None = None,
) -> tuple[TokenTree, float]:
  """The tree of the most expected tokens a millisecond.

  The hardware-aware tree optimizer of the paper's second version: the best
  tree for each size and depth, the winner by measured times. A round is taken
  to cost one target pass and one draft pass a level.

  Args:
    acceptance: [K], chance that the child of rank k is the accepted one.
    pass_ms: for each size to try, milliseconds of a target pass over that many
      nodes, the root included. A tree of a size that was not timed is charged
      for the next that was.
    draft_ms: milliseconds to draft one level.
    max_depth: the most levels below the root, None for any number.

  Returns:
    The tree, as `best_tree` would number it, and its tokens a millisecond.

  Raises:
    ValueError: what `best_tree` refuses, no sizes, a target pass that takes no
      time, or a draft pass that takes less than none.
  """
  if not pass_ms:
    raise ValueError('pass_ms must time at least one size, got none')
  sizes = sorted(pass_ms)
  if sizes[0] < 1:
    raise ValueError(f'sizes must be at least 1, got {sizes[0]}')
  for size in sizes:
    if not pass_ms[size] > 0:
      raise ValueError(
        f'pass_ms of {size} nodes must be above 0, got {pass_ms[size]}'
      )
  if not draft_ms >= 0:
    raise ValueError(f'draft_ms must be at least 0, got {draft_ms}')
  values, choices = _solve(acceptance, sizes[-1], max_depth)
  target_ms = np.array([pass_ms[size] for size in sizes])
  draft_ms_at = draft_ms * np.arange(len(values))
  rates = values[:, sizes] / (target_ms[None, :] + draft_ms_at[:, None])
  depth, best = np.unravel_index(rates.argmax(), rates.shape)
  tree = _tree(values, choices, depth, sizes[best])
  return tree, float(rates[depth, best])


def branchings(budget: int, max_depth: int) -> list[tuple[int, ...]]:
  """All branching factors within a budget of leaves, for a search by hand.

  Yang et al. 2401.06706, section 4, where the budget is 32. With the budget B
  those of depth d grow as B · log(B)^(d - 1) / (d - 1)!: up to 4 levels there
  are 1,073 for 32 leaves and 2,964 for 64, up to 6 levels 4,143 and 13,272.

  Under the assumption of this module the decreasing order of the same factors
  is never worse than another, so a search may skip the rest. It has as many
  leaves but more nodes: 4 x 2 has 13, 2 x 4 has 11.

  Args:
    budget: the most leaves, which are paths to verify.
    max_depth: the most levels below the root.

  Returns:
    Every (k_1, .., k_d) with 1 <= d <= `max_depth`, all factors at least 1 and
    their product at most `budget`; shorter ones first. `TokenTree.branching`
    makes the tree.

  Raises:
    ValueError: a budget or a depth below 1.
  """
  if budget < 1:
    raise ValueError(f'budget must be at least 1, got {budget}')
  if max_depth < 1:
    raise ValueError(f'max_depth must be at least 1, got {max_depth}')
  found, level = [], [((), budget)]
  for _ in range(max_depth):
    level = [
      ((*factors, factor), left // factor)
      for factors, left in level
      for factor in range(1, left + 1)
    ]
    found += [factors for factors, _ in level]
  return found


def _checked(acceptance: Sequence[float]) -> np.ndarray:
  """Acceptance as float64 [K]."""
  chance_k = np.asarray(acceptance, np.float64)
  if chance_k.ndim != 1:
    raise ValueError(f'acceptance must be a vector, got {chance_k.ndim} axes')
  # Written so that NaN fails too.
  if not (chance_k >= 0).all():
    raise ValueError(f'acceptance must be at least 0, got {chance_k.min()}')
  if chance_k.sum() > 1 + 1e-6:
    raise ValueError(f'acceptance must sum to at most 1, got {chance_k.sum()}')
  return chance_k


def _solve(
  acceptance: Sequence[float], num_nodes: int, max_depth: int | None
) -> tuple[np.ndarray, list[np.ndarray]]:
  """The best values for all budgets and depths, and how to get them.

  Returns:
    values: [D + 1, N + 1]; at [d, n], tokens a round of the best tree of at
      most n nodes and d levels, 0 for no nodes. D is at most `max_depth`, less
      where a level more changes nothing.
    choices: D of int [K, N + 1]; at [d - 1][k, n], where at most n nodes are
      left for the children of ranks k.. of the root of a tree of d levels, how
      many go to the subtree of rank k; 0 ends the row of siblings.
  """
  chance_k = _checked(acceptance)
  if num_nodes < 1:
    raise ValueError(f'num_nodes must be at least 1, got {num_nodes}')
  if max_depth is None:
    max_depth = num_nodes - 1
  if max_depth < 0:
    raise ValueError(f'max_depth must be at least 0, got {max_depth}')
  ranks = min(len(chance_k), num_nodes - 1)

  budget = np.arange(num_nodes + 1)
  # [n, m]: of n nodes, m are for one child and the rest for later siblings.
  rest_nm = budget[:, None] - budget[None, :]

  values, choices = [(budget >= 1).astype(np.float64)], []
  for _ in range(max_depth):
    choice_kn = np.zeros((ranks, num_nodes + 1), np.int64)
    siblings_n = np.zeros(num_nodes + 1)
    for rank in reversed(range(ranks)):
      value_nm = np.where(
        rest_nm >= 0,
        (chance_k[rank] * values[-1])[None, :] + siblings_n[rest_nm],
        -np.inf,
      )
      # No rank can be skipped: without this child there are none after it.
      value_nm[:, 0] = 0.0
      choice_kn[rank] = value_nm.argmax(axis=1)
      siblings_n = value_nm.max(axis=1)
    value_n = np.concatenate([[0.0], 1.0 + siblings_n[:-1]])
    # Each level follows from the last alone: equal once is equal for good.
    if (value_n == values[-1]).all():
      break
    values.append(value_n)
    choices.append(choice_kn)
  return np.stack(values), choices


def _tree(
  values: np.ndarray, choices: list[np.ndarray], depth: int, num_nodes: int
) -> TokenTree:
  """The smallest, then shallowest tree as good as the best of the budget.

  Args:
    values: as `_solve` returns them.
    choices: as `_solve` returns them.
    depth: the most levels.
    num_nodes: the most nodes.
  """
  # A tree is summed in the same order whatever the budget, so to have found no
  # better one is to have found the same number.
  value = values[depth, num_nodes]
  num_nodes = int((values[depth] == value).argmax())
  depth = int((values[:, num_nodes] == value).argmax())
  parents, level = [-1], [(0, num_nodes)]
  for choice_kn in reversed(choices[:depth]):
    level_below = []
    for node, left in level:
      left -= 1
      for choice_n in choice_kn:
        taken = int(choice_n[left])
        if not taken:
          break
        level_below.append((len(parents), taken))
        parents.append(node)
        left -= taken
    level = level_below
  return TokenTree(tuple(parents))
