"""What a verifier of a user's own is asked before anything is compiled with it.

Whether it has what a verifier has, and whether a few drafts get distributions
of it. That they are the right ones is what `specsamp.conformance` computes.
"""

import functools
from typing import Any, get_args

import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.errors import UserError, check_name
from specsamp.utils import user_modules
from specsamp.verification.verifier import Verifier, check


def check_parts(verifier: Any) -> None:
  """Refuses what is no verifier, and names what it lacks.

  Raises:
    UserError: a class, an object without a verifier's methods or attributes,
      a law that there is not, or what has no hash.
  """
  name = type(verifier).__name__
  if isinstance(verifier, type):
    raise UserError(
      f'verifier: got the class {verifier.__name__}, expected an object of it, '
      f'{verifier.__name__}()'
    )
  for method in ('stop_probs', 'leave_probs'):
    own = getattr(verifier, method, None)
    if own is None or getattr(own, '__func__', None) is getattr(
      Verifier, method
    ):
      raise UserError(f'verifier {name}: has no method {method}')
    if not callable(own):
      raise UserError(f'verifier {name}: {method} is no method: got {own!r}')
  for attribute, kinds in (
    ('accepts', (frozenset, set, tuple, list)),
    ('lossless', bool),
  ):
    value = getattr(verifier, attribute, None)
    if not isinstance(value, kinds):
      raise UserError(
        f'verifier {name}: {attribute}: got {value!r}, expected '
        f'{"laws" if attribute == "accepts" else "True or False"}'
      )
  if not verifier.accepts:
    raise UserError(f'verifier {name}: accepts no law, expected at least one')
  for law in verifier.accepts:
    check_name(f'verifier {name}: law', law, get_args(Law))
  try:
    hash(verifier)
  except TypeError as error:
    raise UserError(
      f'verifier {name}: {error}; programs are compiled for it, so it must be '
      'hashable, such as a frozen dataclass of numbers and texts'
    ) from None


@functools.lru_cache(maxsize=256)
def check_sums(
  verifier: Verifier, law: Law, tree: TokenTree, vocab_size: int
) -> None:
  """Refuses a verifier whose probabilities are none, ahead of any draft.

  It is asked about a few drafts of random tokens, before a program is compiled
  with it: rounds cost what they cost without.

  Args:
    verifier: the rule.
    law: of the drafts.
    tree: of the drafts.
    vocab_size: V.

  Raises:
    ValueError: a `Draft.law` that it cannot correct, stop or leave
      probabilities of another shape, that are negative or no number, or do not
      sum to 1, or what it raised.
  """
  rng = np.random.default_rng(0)
  # A flat, a peaked and a greedy target, the last one the draft's own.
  peaks_b11 = np.asarray([1, 8, 1e3], np.float32)[:, None, None]
  random = lambda *shape: rng.standard_normal(
    (len(peaks_b11), *shape, vocab_size), np.float32
  )
  softmax = lambda x: np.exp(x - x.max(axis=-1, keepdims=True))
  normal = lambda x: x / x.sum(axis=-1, keepdims=True)
  p_bnv, q_biv = peaks_b11 * random(tree.size), random(len(tree.internal))
  q_biv[-1] = p_bnv[-1, list(tree.internal)]
  drawn = law != 'deterministic' and tree.internal
  tokens_bn = _tokens_of(q_biv, tree, law)
  q_biv = normal(softmax(q_biv))
  draft = Draft(
    tokens=jnp.asarray(tokens_bn, jnp.int32),
    q=jnp.asarray(q_biv) if drawn else None,
    tree=tree,
    law=law,
    valid=jnp.asarray(_valid(tokens_bn, q_biv, tree, law)),
  )
  p_bnv = jnp.asarray(normal(softmax(p_bnv)))
  check(verifier, draft, p_bnv)
  shape = p_bnv.shape
  stop_bn = _tried(verifier, 'stop_probs', 'nodes', shape[:2], draft, p_bnv)
  node_b = jnp.argmax(stop_bn, axis=1).astype(jnp.int32)
  _tried(verifier, 'leave_probs', 'tokens', shape[::2], draft, p_bnv, node_b)


def _tried(verifier: Verifier, method: str, axis: str, shape, draft, *given):
  """Returns the probabilities that a method computes, checked."""
  name = f'{type(verifier).__name__}, tried with {describe(draft)}'
  given = draft, *given
  try:
    found = getattr(verifier, method)(*given)
    probs = np.asarray(found, np.float64)
  except UserError:
    raise
  except Exception as error:
    raise UserError(
      f'{name}: {method} failed: {user_modules.describe(error)}'
    ) from error
  if probs.shape != shape:
    raise UserError(
      f'{name}: {method}: got shape {probs.shape}, expected {shape}'
    )
  sums = probs.sum(axis=-1)
  if not (np.all(probs >= -1e-6) and np.allclose(sums, 1, atol=1e-3)):
    raise UserError(
      f'{name}: {method} are not distributions over the {axis}: got rows that '
      f'sum to {np.round(sums, 4).tolist()}, the smallest entry '
      f'{probs.min():.3g}, expected sums of 1 and no entry below 0'
    )
  return found


def describe(draft: Draft) -> str:
  """Returns the tree and the law of a draft in words."""
  tree = draft.tree
  if tree.size == 1:
    shape = 'the empty draft (a root alone)'
  elif tree.is_chain:
    shape = f'a chain of {tree.depth} tokens'
  else:
    shape = f'a tree of {tree.size} nodes'
  return f'{shape}, law {draft.law!r}'


def _tokens_of(q_biv, tree: TokenTree, law: Law):
  """Tokens [B, N] drawn from logits q; the root's is 0."""
  rng = np.random.default_rng(1)
  tokens_bn = np.zeros((len(q_biv), tree.size), np.int64)
  for i, node in enumerate(tree.internal):
    scores_bv = q_biv[:, i] + rng.gumbel(size=q_biv[:, i].shape)
    for child in tree.children(node):
      if law == 'top_plus_one' and child != tree.children(node)[-1]:
        best_bv = np.where(scores_bv > -np.inf, q_biv[:, i], -np.inf)
        tokens_bn[:, child] = best_bv.argmax(axis=1)
      else:
        tokens_bn[:, child] = scores_bv.argmax(axis=1)
      if law == 'iid':
        scores_bv = q_biv[:, i] + rng.gumbel(size=q_biv[:, i].shape)
      else:  # the largest with noise are drawn without replacement
        np.put_along_axis(scores_bv, tokens_bn[:, [child]], -np.inf, axis=1)
  return tokens_bn


def _valid(tokens_bn, q_biv, tree: TokenTree, law: Law):
  """bool [B, N]: what a draft may hold, no token of a q of 0 nor below one."""
  valid_bn = np.ones(tokens_bn.shape, bool)
  rows = np.arange(len(tokens_bn))
  for i, node in enumerate(tree.internal if law != 'deterministic' else ()):
    for child in tree.children(node):
      drawable = q_biv[rows, i, tokens_bn[:, child]] > 0
      valid_bn[:, child] = valid_bn[:, node] & drawable
  return valid_bn
