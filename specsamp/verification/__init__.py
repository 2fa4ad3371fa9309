"""Verification rules: which drafted tokens to keep, and what to emit next."""

import functools

from specsamp.drafting.draft import DynamicTree, Law, TokenTree, Verdict
from specsamp.errors import UserError, unknown
from specsamp.utils import user_modules
from specsamp.verification.block import BlockVerifier
from specsamp.verification.checks import check_parts, check_sums
from specsamp.verification.greedy_block import GreedyBlockVerifier
from specsamp.verification.gumbel import GumbelVerifier
from specsamp.verification.k_seq import KSeqVerifier
from specsamp.verification.multi_candidate import MultiCandidateVerifier
from specsamp.verification.naive import NaiveVerifier
from specsamp.verification.token import TokenVerifier
from specsamp.verification.top_plus_one import TopPlusOneVerifier
from specsamp.verification.traversal import TraversalVerifier
from specsamp.verification.typical import TypicalLossyVerifier
from specsamp.verification.verifier import (
  Verifier,
  check_law,
  draw_verdict,
  is_coupled,
)

__all__ = [
  'VERIFIERS',
  'BlockVerifier',
  'GreedyBlockVerifier',
  'GumbelVerifier',
  'KSeqVerifier',
  'MultiCandidateVerifier',
  'NaiveVerifier',
  'TokenVerifier',
  'TopPlusOneVerifier',
  'TraversalVerifier',
  'TypicalLossyVerifier',
  'Verdict',
  'Verifier',
  'check_law',
  'check_parts',
  'check_sums',
  'default_name',
  'draw_verdict',
  'is_coupled',
  'make',
  'name_without_draft',
]


#: By the names that `make` knows.
VERIFIERS = {
  'token': TokenVerifier,
  'block': BlockVerifier,
  'multi_candidate': MultiCandidateVerifier,
  'naive': NaiveVerifier,
  'k_seq': KSeqVerifier,
  'traversal': TraversalVerifier,
  'greedy_block': GreedyBlockVerifier,
  'top_plus_one': TopPlusOneVerifier,
  'gumbel': GumbelVerifier,
  'typical_lossy': TypicalLossyVerifier,
}


def default_name(law: Law, tree: TokenTree) -> str:
  """Returns the name of the rule for drafts of this law and shape.

  A draft gets this rule if none is given. Every law has one, and it is
  lossless. `make` makes the verifier.

  Args:
    law: how the candidates were chosen, see `Law`.
    tree: the shape of the draft, static or chosen by each draft.
  """
  if law == 'deterministic' or isinstance(tree, DynamicTree):
    return 'naive'
  if law == 'top_plus_one':
    return 'top_plus_one'
  chain = tree.is_chain and law == 'iid'
  return 'token' if chain else 'multi_candidate'


def name_without_draft(name: str) -> str:
  """Returns the name of the rule of plain decoding next to drafts of a rule.

  It is the same rule if this one verifies an empty draft, so that coupled rules
  emit the same text with and without a draft. Otherwise it is `token`, and also
  for user-defined rules, which may not handle an empty draft.

  Args:
    name: a name that `make` takes.

  Raises:
    UserError: no verifier has that name.
  """
  if user_modules.is_name(name) or 'iid' not in make(name).accepts:
    return 'token'
  return name


def make(name: str) -> Verifier:
  """The verifier called `name`.

  For chains `token` and `block`, for several from one root `greedy_block`; for
  trees, chains among them, `multi_candidate`, `naive`, `k_seq`, `traversal`,
  `top_plus_one` and `gumbel`. All of them are lossless; `typical_lossy`, for
  trees too, is not. `my.module:Rule` is what a
  class or a function of a user's own makes, called without arguments.

  Raises:
    UserError: no verifier has that name, or it is of a user's own and makes
      none.
  """
  if name in VERIFIERS:
    return VERIFIERS[name]()
  if user_modules.is_name(name):
    return _own(name)
  other = f', or your own, {user_modules.FORM}'
  raise UserError(unknown('verifier', name, VERIFIERS, other))


@functools.cache
def _own(name: str) -> Verifier:
  """Made once: programs are compiled for it, and found again by it."""
  verifier = user_modules.make('verifier', name)
  check_parts(verifier)
  return verifier
