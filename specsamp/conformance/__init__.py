"""Conformance tests of user-defined drafters and verifiers.

`check_verifier` computes exactly whether a verifier is lossless.
`check_drafter` tests whether a drafter draws its tokens from the q that it
reports. Call them in your tests.
"""

from specsamp.conformance.drafters import check_drafter
from specsamp.conformance.verifiers import check_verifier

__all__ = ['check_drafter', 'check_verifier']
