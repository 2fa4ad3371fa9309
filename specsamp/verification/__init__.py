"""Verification rules: which drafted tokens to keep, and what to say next."""

from specsamp.verification.block import BlockVerifier
from specsamp.verification.token import TokenVerifier
from specsamp.verification.verifier import Verdict, Verifier, draw_verdict

__all__ = ['Verdict', 'Verifier', 'draw_verdict', 'make']


def make(name: str) -> Verifier:
  """The verifier called `name`: `token` or `block`.

  Raises:
    ValueError: no verifier has that name.
  """
  verifiers = {'token': TokenVerifier, 'block': BlockVerifier}
  if name not in verifiers:
    raise ValueError(
      f'verifier: got {name!r}, expected one of {", ".join(verifiers)}'
    )
  return verifiers[name]()
