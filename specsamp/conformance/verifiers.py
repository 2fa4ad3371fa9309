"""Exact check that a verifier is lossless, over every draft of small trees."""

import numpy as np

from specsamp import verification
from specsamp.conformance.enumeration import (
  KINDS,
  Outcome,
  Table,
  make_tables,
  run_tables,
)
from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.utils import user_modules
from specsamp.verification import Verifier, checks

# A small epsilon in a denominator is allowed: float32 rounds by more.
_TOLERANCE = 1e-9
# Kinds of p for coupled rules, which get the one-hot winners of races.
_ONE_HOT = ('one_hot_p', 'one_hot_both')
# Trees and the sizes of their vocabularies. The last tree is uneven.
_TREES = (
  (TokenTree.chain(0), 3),
  (TokenTree.chain(3), 3),
  (TokenTree.branching((3,)), 4),
  (TokenTree.branching((2, 1, 1)), 3),
  (TokenTree((-1, 0, 0, 1, 1)), 3),
)


def check_verifier(verifier: Verifier) -> None:
  """Checks in float64 that a rule is lossless.

  It sums P(draft) * stop * leave over every draft of small trees and
  vocabularies, with all or some of the candidates drafted and with p and q of
  many kinds. The sum must be the target's distribution, for each law that the
  rule accepts. A tree for which the rule raises an exception is skipped, since
  `specsamp.generate` refuses it. For a rule with `lossless = False` it checks
  only that probabilities sum to 1 and that no undrafted token is accepted.

  Raises:
    UserError: a check fails, the object is not a verifier, or it takes none of
      the trees under one of its laws.
  """
  verification.check_parts(verifier)
  name = type(verifier).__name__
  for law in sorted(verifier.accepts):
    is_taken, refusal = False, None
    for tree, vocab in _TREES:
      try:
        verification.check_law(verifier, law, tree)
      except Exception as error:
        refusal = refusal or error
        continue
      is_taken = is_taken or tree.depth > 0
      tables = _tables(tree, vocab, verification.is_coupled(verifier))
      where = f'{name}, law {law!r}, {checks.describe(tree)}'
      try:
        outcomes = run_tables(verifier, tables, tree, law)
      except UserError:
        raise
      except Exception as error:
        raise UserError(
          f'{where}: failed: {user_modules.describe(error)}'
        ) from error
      for outcome in outcomes:
        _check_outcome(verifier, outcome, where)
    if not is_taken:
      raise UserError(
        f'{name}: takes no draft of law {law!r}: '
        f'{user_modules.describe(refusal)}'
      ) from refusal


def _tables(tree: TokenTree, vocab: int, is_coupled: bool) -> list[Table]:
  shapes = [(vocab,) * i + (tree.width,) for i in range(tree.depth)]

  def cuts(rng):
    yield 'all drafted', [np.ones(shape, bool) for shape in shapes]
    if shapes:
      yield 'some drafted', [rng.random(shape) < 0.7 for shape in shapes]

  kinds = _ONE_HOT if is_coupled else KINDS
  return make_tables(vocab, tree.depth, cuts, seed=1, kinds=kinds)


def _check_outcome(verifier: Verifier, outcome: Outcome, where: str) -> None:
  """Checks the stop and leave probabilities for the drafts of one table."""
  where = f'{where}, p and q {outcome.table.name}'
  drafts = outcome.drafts

  def describe_draft(row, node=None):
    tokens, valid = drafts.tokens[row], drafts.valid[row].astype(int)
    at = '' if node is None else f', node {node}'
    return f', draft {tokens.tolist()}, drafted {valid.tolist()}{at}'

  probs_of = {'stop_probs': outcome.stop, 'leave_probs': outcome.leave}
  for method, probs in probs_of.items():
    checks.check_distributions(where, method, probs, _TOLERANCE, describe_draft)
  is_wrong = (outcome.stop > _TOLERANCE) & ~drafts.valid
  if is_wrong.any():
    row, node = np.argwhere(is_wrong)[0]
    raise UserError(
      f'{where}: accepts an undrafted node with probability '
      f'{outcome.stop[row, node]:.6g}{describe_draft(row, node)}'
    )
  emitted, target = outcome.joint
  if verifier.lossless and outcome.error > _TOLERANCE:
    tokens = np.unravel_index(np.abs(emitted - target).argmax(), emitted.shape)
    raise UserError(
      f'{where}: not lossless: emits the tokens {[int(t) for t in tokens]} '
      f'with {emitted[tokens]:.6g}, expected {target[tokens]:.6g}'
    )
