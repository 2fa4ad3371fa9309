"""Draft trees from the numbers of a config."""

from collections.abc import Callable, Sequence

from specsamp.drafting.draft import DynamicTree, TokenTree
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel


def token_tree(
  branching: Sequence[int | Sequence[int]], target: LanguageModel
) -> TokenTree:
  """Returns the tree of a branching, see `TokenTree.branching`.

  Raises:
    UserError: the branching is invalid, or the tree has more nodes than the
      target has positions.
  """
  name = f'branching {"x".join(map(str, branching))}'
  return _make(name, lambda: TokenTree.branching(branching), target)


def dynamic_tree(sizes: Sequence[int], target: LanguageModel) -> DynamicTree:
  """Returns the bounds of dynamic trees, see `DynamicTree.of`.

  Args:
    sizes: nodes, depth and children.
    target: the target.

  Raises:
    UserError: the sizes are invalid, or there are more nodes than the target
      has positions.
  """
  if len(sizes) != 3 or any(type(size) is not int for size in sizes):
    raise UserError(
      f'dynamic_tree: got {tuple(sizes)}, expected (nodes, depth, children)'
    )
  return _make('dynamic_tree', lambda: DynamicTree.of(*sizes), target)


def _make(
  name: str, make: Callable[[], TokenTree], target: LanguageModel
) -> TokenTree:
  try:
    tree = make()
  except (TypeError, ValueError) as error:
    raise UserError(f'{name}: {error}') from None
  if tree.size > target.config.max_length:
    raise UserError(
      f'{name}: got {tree.size} nodes, expected at most the '
      f'{target.config.max_length} positions of the target'
    )
  return tree
