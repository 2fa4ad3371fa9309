"""Verification rules: which drafted tokens to keep, and what to emit next."""

from specsamp.drafting.draft import Verdict
from specsamp.verification.block import BlockVerifier
from specsamp.verification.gumbel import GumbelVerifier
from specsamp.verification.k_seq import KSeqVerifier
from specsamp.verification.multi_candidate import MultiCandidateVerifier
from specsamp.verification.naive import NaiveVerifier
from specsamp.verification.token import TokenVerifier
from specsamp.verification.traversal import TraversalVerifier
from specsamp.verification.typical import TypicalLossyVerifier
from specsamp.verification.verifier import (
  Verifier,
  check_law,
  check_sums,
  draw_verdict,
)

__all__ = [
  'VERIFIERS',
  'BlockVerifier',
  'GumbelVerifier',
  'KSeqVerifier',
  'MultiCandidateVerifier',
  'NaiveVerifier',
  'TokenVerifier',
  'TraversalVerifier',
  'TypicalLossyVerifier',
  'Verdict',
  'Verifier',
  'check_law',
  'check_sums',
  'draw_verdict',
  'make',
]


#: By the names that `make` knows.
VERIFIERS = {
  'token': TokenVerifier,
  'block': BlockVerifier,
  'multi_candidate': MultiCandidateVerifier,
  'naive': NaiveVerifier,
  'k_seq': KSeqVerifier,
  'traversal': TraversalVerifier,
  'gumbel': GumbelVerifier,
  'typical_lossy': TypicalLossyVerifier,
}


def make(name: str) -> Verifier:
  """The verifier called `name`.

  For chains `token` and `block`; for trees, chains among them,
  `multi_candidate`, `naive`, `k_seq`, `traversal` and `gumbel`. All of them are
  lossless; `typical_lossy`, for trees too, is not.

  Raises:
    ValueError: no verifier has that name.
  """
  if name not in VERIFIERS:
    raise ValueError(
      f'verifier: got {name!r}, expected one of {", ".join(VERIFIERS)}'
    )
  return VERIFIERS[name]()
