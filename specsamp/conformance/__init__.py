"""Conformance tests of drafters, verifiers, and samplers of any origin.

`check_verifier` computes exactly whether a verifier of this package's interface
is lossless. `check_drafter` tests whether a drafter draws its tokens from the q
that it reports. `check_rule` and `check_decoder` test code that is not of this
package: one adapter function, numpy in and out. They import numpy alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `__getattr__` imports these names when first used
  from specsamp.conformance.drafters import check_drafter
  from specsamp.conformance.kit import check_decoder, check_rule
  from specsamp.conformance.scenarios import Request
  from specsamp.conformance.verifiers import check_verifier

__all__ = [
  'Request',
  'check_decoder',
  'check_drafter',
  'check_rule',
  'check_verifier',
]

# The kit is used without jax, which takes seconds to import.
_MODULES = {
  'Request': 'scenarios',
  'check_decoder': 'kit',
  'check_drafter': 'drafters',
  'check_rule': 'kit',
  'check_verifier': 'verifiers',
}


def __getattr__(name: str) -> Any:
  """Returns a public name, imported when it is first used."""
  if name in _MODULES:
    module = importlib.import_module(f'{__name__}.{_MODULES[name]}')
    globals()[name] = getattr(module, name)
    return globals()[name]
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
