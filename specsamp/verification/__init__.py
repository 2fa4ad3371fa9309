"""Verification rules: which drafted tokens to accept, and what to emit next.

A verifier accepts a path of drafted tokens and then emits one more token. All
rules here except `typical_lossy` and `synthetic` are lossless: the output
follows the target's distribution whatever the draft is.

Notation of this package, at one node of a draft:

* x is a token. p(x) and q(x) are its probabilities after the node, under the
  target and under the drafter, both after temperature, top-k and so on.
* (f)+ = max(f, 0) and norm(f) = f / sum(f), over the vocabulary.
* norm((p - q)+) is the residual distribution. A bonus token is a draw from p
  after a fully accepted path.
* γ is the length of a chain and C the number of a node's children. The other
  letters are in the docstring of `specsamp`.

A draft's law states how its candidates were chosen. See `Law`.
"""

import functools

from specsamp.drafting.draft import DynamicTree, Law, TokenTree, Verdict
from specsamp.errors import UserError, describe_unknown
from specsamp.utils import user_modules
from specsamp.verification import synthetic
from specsamp.verification.block import BlockVerifier
from specsamp.verification.checks import check_parts, check_sums
from specsamp.verification.greedy_block import GreedyBlockVerifier
from specsamp.verification.k_seq import KSeqVerifier
from specsamp.verification.multi_candidate import MultiCandidateVerifier
from specsamp.verification.naive import GumbelVerifier, NaiveVerifier
from specsamp.verification.synthetic import SyntheticVerifier
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
  'SyntheticVerifier',
  'TokenVerifier',
  'TopPlusOneVerifier',
  'TraversalVerifier',
  'TypicalLossyVerifier',
  'Verdict',
  'Verifier',
  'check_law',
  'check_lossless',
  'check_parts',
  'check_sums',
  'default_name',
  'draw_verdict',
  'is_coupled',
  'make',
  'name_without_draft',
]


#: Verifier classes by the name that `make` takes.
#: `synthetic` is missing, because its name has a length.
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
  """Returns the name of the lossless rule that verifies drafts by default."""
  if law == 'deterministic' or isinstance(tree, DynamicTree):
    return 'naive'
  if law == 'top_plus_one':
    return 'top_plus_one'
  return 'token' if tree.is_chain and law == 'iid' else 'multi_candidate'


def name_without_draft(name: str) -> str:
  """Returns the rule of the plain decoding that a rule is compared with.

  A rule that verifies empty drafts is compared with itself, so that coupled
  rules emit the same completions with and without a draft. Lossy rules, and
  those which may refuse such drafts, are compared with `token`.
  """
  if user_modules.is_name(name):
    return 'token'
  rule = make(name)
  return name if rule.lossless and 'iid' in rule.accepts else 'token'


@functools.cache  # compiled programs are looked up by the verifier
def make(name: str) -> Verifier:
  """Returns the verifier called `name`.

  Args:
    name: a key of `VERIFIERS`; `synthetic:LENGTH`, see `SyntheticVerifier`; or
      `my.module:Rule`, a user-defined class or function that is called without
      arguments.

  Raises:
    UserError: the name is unknown, or the user-defined rule is not a verifier.
  """
  if name in VERIFIERS:
    return VERIFIERS[name]()
  if name.partition(':')[0] == synthetic.NAME:
    return synthetic.parse(name)
  if not user_modules.is_name(name):
    others = f', {synthetic.NAME}:LENGTH, or yours, {user_modules.FORM}'
    raise UserError(describe_unknown('verifier', name, VERIFIERS, others))
  verifier = user_modules.make('verifier', name)
  check_parts(verifier)
  return verifier


def check_lossless(what: str, verifier: str | Verifier | None) -> None:
  """Checks that a verifier is lossless, where a caller relies on it.

  Args:
    what: beginning of the message, such as 'rollouts'.
    verifier: a verifier or its name; None is a lossless default.

  Raises:
    UserError: the verifier states that it is not lossless.
  """
  rule = make(verifier) if isinstance(verifier, str) else verifier
  if rule is not None and not rule.lossless:
    raise UserError(
      f'{what}: got the verifier {rule}, which is NOT lossless, expected a '
      'lossless one'
    )
