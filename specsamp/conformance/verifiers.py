"""A rule is lossless: what it emits is computed, over every draft there is."""

import numpy as np

from specsamp import verification
from specsamp.conformance.enumeration import KINDS, Round, make_tables, run
from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.utils import user_modules
from specsamp.verification import Verifier

# An epsilon in a denominator is no loss: float32 rounds by more.
_TOLERANCE = 1e-9
# What p is where a rule is told the winners of races.
_ONE_HOT = ('one_hot_p', 'one_hot_both')


# By name: a tree and the size of the vocabulary.
_TREES = {
  'the empty draft (a root alone)': (TokenTree.chain(0), 3),
  'a chain of 3': (TokenTree.chain(3), 3),
  'three candidates': (TokenTree.branching((3,)), 4),
  'the tree 2x1x1': (TokenTree.branching((2, 1, 1)), 3),
  # Whose leaves are of two depths.
  'an uneven tree': (TokenTree((-1, 0, 0, 1, 1)), 3),
}


def check_verifier(verifier: Verifier) -> None:
  """Computes that a rule is lossless, in float64.

  Every draft of small trees and vocabularies, whole or with candidates missing,
  under p and q of all sorts, is a row: summed over them, P(draft) * stop *
  leave must be the target's distribution. So it is for each law that the rule
  accepts, on the trees that it takes; on those on which it raises something it
  is not asked, as it is not by `specsamp.generate`. A rule of
  `lossless = False` is held to what all are: probabilities that sum to 1, and
  no token accepted that was not drafted.

  Args:
    verifier: the rule.

  Raises:
    UserError: what fails, on which draft or text; or it is no verifier, or
      takes none of the trees under one of its laws.
  """
  verification.check_parts(verifier)
  name = type(verifier).__name__
  for law in sorted(verifier.accepts):
    taken, refusal = False, None
    for where, (tree, vocab) in _TREES.items():
      try:
        verification.check_law(verifier, law, tree)
      except Exception as error:
        refusal = refusal or error
        continue
      taken = taken or bool(tree.depth)
      tables = _tables(tree, vocab, verification.is_coupled(verifier))
      where = f'{name}, law {law!r}, {where}'
      try:
        rounds = run(verifier, tables, tree, law)
      except UserError:
        raise
      except Exception as error:
        raise UserError(
          f'{where}: failed: {user_modules.describe(error)}'
        ) from error
      for found in rounds:
        _check(verifier, found, where)
    if not taken:
      raise UserError(
        f'{name}: takes no draft of law {law!r}: '
        f'{user_modules.describe(refusal)}'
      ) from refusal


def _tables(tree: TokenTree, vocab: int, coupled: bool):
  shapes = [(vocab,) * i + (tree.width,) for i in range(tree.depth)]

  def cuts(rng):
    yield 'all drafted', [np.ones(shape, bool) for shape in shapes]
    if shapes:
      yield 'some drafted', [rng.random(shape) < 0.7 for shape in shapes]

  kinds = _ONE_HOT if coupled else KINDS
  return make_tables(vocab, tree.depth, cuts, seed=1, kinds=kinds)


def _check(verifier: Verifier, found: Round, where: str) -> None:
  """Raises `UserError` for a round of one table that is not right."""
  where = f'{where}, p and q {found.table.name}'
  tokens, valid = found.drafts.tokens, found.drafts.valid
  of_row = lambda row: (
    f'draft {tokens[row].tolist()}, drafted {valid[row].astype(int).tolist()}'
  )
  for method, axis, probs in (
    ('stop_probs', 'nodes', found.stop[:, None]),
    ('leave_probs', 'tokens', found.leave),
  ):
    sums = probs.sum(axis=-1)
    right = (probs >= -_TOLERANCE).all(axis=-1)
    wrong = ~(right & (np.abs(sums - 1) <= _TOLERANCE))
    if wrong.any():
      row, node = np.argwhere(wrong)[0]
      raise UserError(
        f'{where}: {method} is not a distribution over the {axis}: got '
        f'{np.round(probs[row, node], 6).tolist()}, expected a sum of 1 and no '
        f'entry below 0, {of_row(row)}'
        + (f', node {node}' if method == 'leave_probs' else '')
      )
  kept = (found.stop > _TOLERANCE) & ~valid
  if kept.any():
    row, node = np.argwhere(kept)[0]
    raise UserError(
      f'{where}: accepts node {node}, which was not drafted, with '
      f'{found.stop[row, node]:.6g}, {of_row(row)}'
    )
  emitted, target = found.joint
  if verifier.lossless and found.error > _TOLERANCE:
    text = np.unravel_index(np.abs(emitted - target).argmax(), emitted.shape)
    raise UserError(
      f'{where}: not lossless: emits the tokens {[int(t) for t in text]} with '
      f'{emitted[text]:.6g}, expected {target[text]:.6g}'
    )
