"""Whether parts of a user's own do what decoding relies on.

`check_verifier` computes it and `check_drafter` tests it; each is a test of its
own, made to be called by those of whoever writes such a part.
"""

from specsamp.conformance.drafters import check_drafter
from specsamp.conformance.verifiers import check_verifier

__all__ = ['check_drafter', 'check_verifier']
