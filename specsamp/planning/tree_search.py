"""Search of the best static draft tree for a budget, from measurements.

Source: Sequoia, Chen et al. 2402.12374, section 3. It rests on the paper's
positional acceptance assumption: at any node, the child of rank k (the k-th of
its siblings, in node order) is the accepted one with probability
`acceptance[k]`. This probability depends neither on the path to the node nor on
the number of later siblings. The assumption fits verifiers that try the
children one by one. For a verifier that depends on the number of children, such
as K-SEQ, measure acceptance with the number that the tree will have.

A node is reached with the product of the probabilities along its path. A round
emits the tokens of the nodes it reaches and one more, the bonus or residual
token, which the root represents. The expected tokens are the sum over all
nodes.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from specsamp.drafting.draft import TokenTree


def best_tree(
  acceptance: Sequence[float], num_nodes: int, max_depth: int | None = None
) -> TokenTree:
  """Returns the tree of the most expected tokens, by dynamic programming.

  The search is exact, even if acceptance increases with rank. Its time grows
  with `ranks * levels * num_nodes ** 2`. It stops at the first level that
  changes nothing.

  Args:
    acceptance: [K], probability that the child of rank k is the accepted one.
      A node has at most K children.
    num_nodes: N, upper bound on the nodes, the root included.
    max_depth: upper bound on the levels below the root, None for no bound.

  Returns:
    The smallest tree of the highest value; among equals the shallowest. Nodes
    are numbered breadth first, so siblings are consecutive.

  Raises:
    ValueError: acceptance is not a vector of probabilities that sum to at most
      1, or there are no nodes.
  """
  values, choices = _solve(acceptance, num_nodes, max_depth)
  return _tree(values, choices, len(choices), num_nodes)


def expected_tokens(tree: TokenTree, acceptance: Sequence[float]) -> float:
  """Returns the tokens per round, the bonus or residual token included.

  Args:
    tree: any tree. The rank of a node is its position among its siblings.
    acceptance: [K], probability that the child of rank k is the accepted one.

  Raises:
    ValueError: acceptance is not a vector of probabilities that sum to at most
      1, or a node has more than K children.
  """
  chance_k = _checked(acceptance)
  if tree.width > len(chance_k):
    raise ValueError(
      f'a node has {tree.width} children, but acceptance covers '
      f'{len(chance_k)} ranks'
    )
  reached_n = np.ones(tree.size)
  for node, parent in enumerate(tree.parents[1:], start=1):
    reached_n[node] = reached_n[parent] * chance_k[tree.ranks[node]]
  return float(reached_n.sum())


def fastest_tree(
  acceptance: Sequence[float],
  pass_ms: Mapping[int, float],
  draft_ms: float,
  max_depth: int | None = None,
) -> tuple[TokenTree, float]:
  """Returns the tree of the most expected tokens per millisecond.

  This is the hardware-aware tree optimizer of the paper's second version. It
  finds the best tree of each size and depth, and chooses by measured times. A
  round costs one target pass, and one draft pass per level.

  Args:
    acceptance: [K], probability that the child of rank k is the accepted one.
    pass_ms: positive milliseconds of a target pass by its number of nodes, the
      root included. A tree of another size costs as much as the next larger
      one.
    draft_ms: milliseconds to draft one level.
    max_depth: upper bound on the levels below the root, None for no bound.

  Returns:
    The tree, numbered as by `best_tree`, and its tokens per millisecond.

  Raises:
    ValueError: acceptance is not a vector of probabilities that sum to at most
      1.
  """
  sizes = sorted(pass_ms)
  values, choices = _solve(acceptance, sizes[-1], max_depth)
  target_ms = np.array([pass_ms[size] for size in sizes])
  draft_ms_by_depth = draft_ms * np.arange(len(values))
  rates = values[:, sizes] / (target_ms[None, :] + draft_ms_by_depth[:, None])
  depth, best = np.unravel_index(rates.argmax(), rates.shape)
  tree = _tree(values, choices, depth, sizes[best])
  return tree, float(rates[depth, best])


def _checked(acceptance: Sequence[float]) -> np.ndarray:
  """Returns acceptance as float64 [K]."""
  chance_k = np.asarray(acceptance, np.float64)
  # Written so that NaN fails too.
  valid = chance_k.ndim == 1 and (chance_k >= 0).all()
  if not (valid and chance_k.sum() <= 1 + 1e-6):
    raise ValueError(
      f'acceptance: got {acceptance}, expected probabilities that sum to at '
      'most 1'
    )
  return chance_k


def _solve(
  acceptance: Sequence[float], num_nodes: int, max_depth: int | None
) -> tuple[np.ndarray, list[np.ndarray]]:
  """Returns the best values for all budgets and depths, and their choices.

  Returns:
    values: [D + 1, N + 1]; at [d, n], tokens per round of the best tree of at
      most n nodes and d levels, 0 for no nodes. D is `max_depth`, or less if
      one more level changes nothing.
    choices: D arrays, int [K, N + 1]. If n nodes are left for the children of
      ranks k.. of a root with d levels below, [d - 1][k, n] is the number of
      nodes in the subtree of rank k. 0 ends the row of siblings.
  """
  chance_k = _checked(acceptance)
  if num_nodes < 1:
    raise ValueError(f'num_nodes must be at least 1, got {num_nodes}')
  if max_depth is None:
    max_depth = num_nodes - 1
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
      # A rank cannot be skipped: without this child there is no later one.
      value_nm[:, 0] = 0.0
      choice_kn[rank] = value_nm.argmax(axis=1)
      siblings_n = value_nm.max(axis=1)
    value_n = np.concatenate([[0.0], 1.0 + siblings_n[:-1]])
    # A level follows from the last one alone, so all further levels are equal.
    if (value_n == values[-1]).all():
      break
    values.append(value_n)
    choices.append(choice_kn)
  return np.stack(values), choices


def _tree(
  values: np.ndarray, choices: list[np.ndarray], depth: int, num_nodes: int
) -> TokenTree:
  """Returns the smallest, then shallowest tree with the best value.

  The values and choices are those of `_solve`; depth and num_nodes are upper
  bounds.
  """
  # Every budget sums a tree in the same order, so values of a tree are equal.
  value = values[depth, num_nodes]
  num_nodes = int((values[depth] == value).argmax())
  depth = int((values[:, num_nodes] == value).argmax())
  parents, level = [-1], [(0, num_nodes)]
  for choice_kn in reversed(choices[:depth]):
    level_below = []
    for node, left in level:
      left -= 1
      for choice_n in choice_kn:
        subtree_size = int(choice_n[left])
        if not subtree_size:
          break
        level_below.append((len(parents), subtree_size))
        parents.append(node)
        left -= subtree_size
    level = level_below
  return TokenTree(tuple(parents))
