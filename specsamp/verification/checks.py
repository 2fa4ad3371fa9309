"""Checks of user-defined verifiers before any program is compiled with them.

`specsamp.conformance` checks that a rule is lossless.
"""

import functools
from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.errors import UserError, check_name
from specsamp.utils import user_modules
from specsamp.verification.verifier import Verifier, check_accepts

_TRIAL_TOLERANCE = 1e-3  # of float32 sums over a large vocabulary


def check_parts(verifier: Any) -> None:
  """Checks that an object has the methods and attributes of a verifier.

  Raises:
    UserError: it is a class, lacks a method or an attribute, names an unknown
      law, or is not hashable.
  """
  if isinstance(verifier, type):
    raise UserError(
      f'verifier: got the class {verifier.__name__}, expected an object of it, '
      f'{verifier.__name__}()'
    )
  name = f'verifier {type(verifier).__name__}'
  for method in ('stop_probs', 'leave_probs'):
    inherited = getattr(type(verifier), method, None)
    is_abstract = inherited is getattr(Verifier, method)
    if is_abstract or not callable(getattr(verifier, method, None)):
      raise UserError(f'{name}: has no method {method}')
  laws = getattr(verifier, 'accepts', None)
  if not isinstance(laws, frozenset | set | tuple | list) or not laws:
    raise UserError(f'{name}: accepts: got {laws!r}, expected a set of laws')
  for law in laws:
    check_name(f'{name}: law', law, get_args(Law))
  lossless = getattr(verifier, 'lossless', None)
  if not isinstance(lossless, bool):
    raise UserError(f'{name}: lossless: got {lossless!r}, expected a bool')
  try:
    hash(verifier)
  except TypeError as error:
    raise UserError(
      f'{name}: {error}; programs are compiled for it, so it must be hashable, '
      'such as a frozen dataclass of numbers and strings'
    ) from None


@functools.lru_cache(maxsize=256)
def check_sums(
  verifier: Verifier, law: Law, tree: TokenTree, vocab_size: int
) -> None:
  """Checks that a verifier returns distributions for a few random drafts.

  Raises:
    ValueError: the rule does not accept the drafts.
    UserError: it raises an exception, or its probabilities have a wrong shape
      or are not distributions.
  """
  check_accepts(verifier, law, tree)
  draft, p_bnv = _trial_draft(law, tree, vocab_size)
  where = f'{type(verifier).__name__}, tried with {describe(tree)}, law {law!r}'

  def probs_of(method: str, shape: tuple[int, ...], *args) -> np.ndarray:
    try:
      probs = np.asarray(getattr(verifier, method)(draft, p_bnv, *args))
    except UserError:
      raise
    except Exception as error:
      raise UserError(
        f'{where}: {method} failed: {user_modules.describe(error)}'
      ) from error
    if probs.shape != shape:
      raise UserError(
        f'{where}: {method}: got shape {probs.shape}, expected {shape}'
      )
    check_distributions(where, method, probs, _TRIAL_TOLERANCE)
    return probs

  stop_bn = probs_of('stop_probs', p_bnv.shape[:2])
  node_b = jnp.asarray(stop_bn.argmax(axis=1), jnp.int32)
  probs_of('leave_probs', p_bnv.shape[::2], node_b)


def check_distributions(
  where: str,
  method: str,
  probs: np.ndarray,
  tolerance: float,
  describe_row: Callable[..., str] = lambda *index: '',
) -> None:
  """Checks that each row of a method's probabilities is a distribution.

  Sums may be off by `tolerance`, entries below 0 by a thousandth of it. `where`
  begins the message, and `describe_row(*index)` of the row ends it.

  Raises:
    UserError: the sum of a row is not 1, or an entry is negative or NaN.
  """
  probs = probs.astype(np.float64)
  sums = probs.sum(axis=-1)
  is_nonnegative = (probs >= -tolerance / 1000).all(axis=-1)
  is_wrong = ~(is_nonnegative & (np.abs(sums - 1) <= tolerance))
  if is_wrong.any():
    row = tuple(np.argwhere(is_wrong)[0])
    axis = 'nodes' if method == 'stop_probs' else 'tokens'
    raise UserError(
      f'{where}: {method} is not a distribution over the {axis}: got a sum of '
      f'{sums[row]:.6g} and a minimum of {probs[row].min():.3g}, expected a '
      f'sum of 1 and no negative entry{describe_row(*row)}'
    )


def describe(tree: TokenTree) -> str:
  """Returns the shape of a draft in words."""
  if tree.size == 1:
    return 'the empty draft (a root alone)'
  if tree.is_chain:
    return f'a chain of {tree.depth} tokens'
  return f'a tree of {tree.size} nodes'


def _trial_draft(law: Law, tree: TokenTree, vocab_size: int):
  """Returns a draft of the most probable tokens of a random q, and p.

  The three rows have a flat, a peaked and a greedy p. In the greedy row q is p.
  Drafts of law `iid` have siblings with the same token.
  """
  rng = np.random.default_rng(0)
  random = lambda nodes: rng.standard_normal((3, nodes, vocab_size), np.float32)
  p_bnv = np.asarray([1, 8, 1e3], np.float32)[:, None, None] * random(tree.size)
  q_biv = random(len(tree.internal))
  q_biv[-1] = p_bnv[-1, list(tree.internal)]
  p_bnv, q_biv = jax.nn.softmax(p_bnv), np.asarray(jax.nn.softmax(q_biv))
  tokens_bn = np.zeros(p_bnv.shape[:2], np.int32)
  valid_bn = np.ones(tokens_bn.shape, bool)
  for i, node in enumerate(tree.internal):
    children = list(tree.children(node))
    rank_c = np.arange(len(children)) // (2 if law == 'iid' else 1)
    best_bv = np.argsort(-q_biv[:, i], axis=1)
    tokens_bn[:, children] = tokens_bc = best_bv[:, rank_c % vocab_size]
    # A drafter never draws a token of q = 0.
    q_bc = np.take_along_axis(q_biv[:, i], tokens_bc, axis=1)
    valid_bn[:, children] = valid_bn[:, [node]] & (q_bc > 0)
  draft = Draft(
    tokens=jnp.asarray(tokens_bn),
    q=None if law == 'deterministic' or tree.size == 1 else jnp.asarray(q_biv),
    tree=tree,
    law=law,
    valid=jnp.asarray(valid_bn),
  )
  return draft, p_bnv
