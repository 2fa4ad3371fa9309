"""From the numbers of a config to the trees that are drafted."""

from collections.abc import Sequence

from specsamp.drafting.draft import DynamicTree, TokenTree
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel


def token_tree(
  branching: Sequence[int | Sequence[int]], target: LanguageModel
) -> TokenTree:
  """The tree of this branching.

  Raises:
    UserError: what `TokenTree.branching` refuses, or more nodes than the target
      has positions.
  """
  nodes, level = 1, 1
  for factor in branching:
    many = isinstance(factor, Sequence) and not isinstance(factor, str)
    for count in factor if many else (factor,):
      if type(count) is not int:
        raise UserError(f'branching: got {count!r}, expected integers')
    level = sum(factor) if many else level * factor
    nodes += level
    if nodes > target.config.max_length:  # before any is made
      raise UserError(
        f'branching {"x".join(map(str, branching))} has more nodes than the '
        f'{target.config.max_length} positions of the target'
      )
  try:
    return TokenTree.branching(branching)
  except ValueError as error:
    raise UserError(str(error)) from None


def dynamic_tree(sizes: Sequence[int], target: LanguageModel) -> DynamicTree:
  """The bounds of a tree that drafts choose.

  Args:
    sizes: nodes, depth and children, see `DynamicTree.of`.
    target: whose positions are the most nodes.

  Raises:
    UserError: other than three integers, more nodes than the target has
      positions, or what `DynamicTree.of` refuses.
  """
  if len(sizes) != 3 or any(type(size) is not int for size in sizes):
    raise UserError(
      f'dynamic_tree: got {tuple(sizes)}, expected (nodes, depth, children)'
    )
  if sizes[0] > target.config.max_length:
    raise UserError(
      f'dynamic_tree: got {sizes[0]} nodes, expected at most the '
      f'{target.config.max_length} positions of the target'
    )
  try:
    return DynamicTree.of(*sizes)
  except ValueError as error:
    raise UserError(str(error)) from None
