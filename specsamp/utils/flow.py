"""Control flow that leaves caches where they are."""

from collections.abc import Callable
from typing import TypeVar

import jax

Carry = TypeVar('Carry')


def cond_in_place(
  predicate, step: Callable[[Carry], Carry], carry: Carry
) -> Carry:
  """`step(carry)` if true, else `carry`, computed in place.

  A loop of one turn or none: XLA copies what goes through a conditional, the
  whole of a cache, but not what a loop carries.

  Args:
    predicate: bool [].
    step: its result has the shapes and types of what it is given.
    carry: a pytree of arrays.
  """
  return jax.lax.while_loop(
    lambda state: state[0],
    lambda state: (jax.numpy.zeros_like(state[0]), step(state[1])),
    (predicate, carry),
  )[1]
