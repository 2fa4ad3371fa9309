"""Control flow that does not copy caches."""

from collections.abc import Callable
from typing import TypeVar

import jax

Carry = TypeVar('Carry')


def cond_in_place(
  predicate, step: Callable[[Carry], Carry], carry: Carry
) -> Carry:
  """Returns `step(carry)` if the predicate is true, else `carry`.

  The function is a loop of at most one iteration: XLA copies the operands of a
  conditional, such as a whole cache, but not the carry of a loop.

  Args:
    predicate: bool [].
    step: returns a carry of the same shapes and dtypes.
    carry: a pytree of arrays.
  """
  return jax.lax.while_loop(
    lambda state: state[0],
    lambda state: (jax.numpy.zeros_like(state[0]), step(state[1])),
    (predicate, carry),
  )[1]
