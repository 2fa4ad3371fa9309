"""Checks of user-defined drafters, before anything is compiled with them.

The checks find missing parts and an invalid first draft. `specsamp.conformance`
tests that the tokens are drawn from their q.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.drafting.drafter import Drafter, after_prompts, cache_slots
from specsamp.errors import UserError, check_name
from specsamp.language_model import LanguageModel
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes
from specsamp.utils import user_modules

_PROMPT_LENS = (3, 1)
_TEXT_SLOTS = 16


def check_parts(drafter: Any) -> None:
  """Checks that an object has the parts of a drafter.

  Raises:
    UserError: it does not derive from `Drafter`, is not a pytree, lacks
      `propose`, a tree or a law, or has a static field without a hash.
  """
  name = f'drafter {type(drafter).__name__}'
  if not isinstance(drafter, Drafter):
    raise UserError(
      f'drafter: got a {type(drafter).__name__}, expected an object of a class '
      'derived from specsamp.drafting.Drafter'
    )
  if type(drafter).propose is Drafter.propose:
    raise UserError(f'{name}: has no method propose')
  tree, law = getattr(drafter, 'tree', None), getattr(drafter, 'law', None)
  if not isinstance(tree, TokenTree):
    raise UserError(f'{name}: tree: got {tree!r}, expected a TokenTree')
  check_name(f'{name}: law', law, get_args(Law))
  for path, leaf in jax.tree_util.tree_leaves_with_path(drafter):
    if leaf is drafter:
      raise UserError(
        f'{name}: got no pytree, expected a flax.struct.dataclass'
      )
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float):
      raise UserError(
        f'{name}: {jax.tree_util.keystr(path)} is a {type(leaf).__name__}, '
        'expected an array, or a static field: struct.field(pytree_node=False)'
      )
  is_dataclass = dataclasses.is_dataclass(drafter)
  for field in dataclasses.fields(drafter) if is_dataclass else ():
    if field.metadata.get('pytree_node', True):
      continue
    try:
      hash(getattr(drafter, field.name))
    except TypeError as error:
      raise UserError(
        f'{name}: {field.name}: {error}; programs are compiled for a static '
        'field, so it must be hashable, such as a number, a text or a tuple'
      ) from None


def check_first_draft(drafter: Drafter, target: LanguageModel) -> None:
  """Drafts once after two short prompts, and checks the draft.

  The target does not run: its features are zeros.

  Raises:
    UserError: the drafter raised an error, or `check_draft` refuses the draft.
  """
  config = target.config
  batch, width = len(_PROMPT_LENS), max(_PROMPT_LENS)
  capacity = _TEXT_SLOTS + cache_slots(drafter)
  features_bpd = jnp.zeros(
    (batch, width, config.width * max(len(drafter.taps), 1)), config.dtype
  )
  tokens_bp = np.arange(batch * width, dtype=np.int32) % config.num_tokens
  tokens_bp = tokens_bp.reshape(batch, width)
  length_b = np.asarray(_PROMPT_LENS, np.int32)
  tokens_bs = np.pad(tokens_bp, ((0, 0), (0, capacity - width)))

  @jax.jit
  def first_draft(drafter, features_bpd, tokens_bs, length_b):
    state = after_prompts(drafter, tokens_bp, length_b, features_bpd, capacity)
    sampling = SamplingParams().broadcast(batch)
    keys_b = draw.row_keys(jnp.arange(batch, dtype=jnp.int32))
    return drafter.propose(state, tokens_bs, length_b, sampling, keys_b)[0]

  lengths = ' and '.join(map(str, _PROMPT_LENS))
  trial = f', tried after prompts of {lengths} tokens'
  name = f'drafter {type(drafter).__name__}{trial}'
  with meshes.use(target.mesh):
    try:
      draft = first_draft(drafter, features_bpd, tokens_bs, length_b)
    except UserError:
      raise
    except Exception as error:
      raise UserError(
        f'{name}: the first draft failed: {user_modules.describe(error)}'
      ) from error
  if not isinstance(draft, Draft):
    raise UserError(
      f'{name}: propose: got a {type(draft).__name__}, expected a Draft and '
      'the state'
    )
  roots_b = tokens_bp[range(batch), length_b - 1]
  check_draft(drafter, meshes.fetch(draft), roots_b, config.vocab_size, trial)


def check_draft(
  drafter: Drafter,
  draft: Draft,
  root_b: Sequence[int],
  vocab_size: int,
  trial: str = '',
) -> None:
  """Checks a draft on the host.

  `root_b` are the last tokens of the rows, and `trial` follows the drafter's
  name in messages.

  Raises:
    UserError: the tree or law is not the drafter's, a shape or dtype does not
      fit, a token is out of the vocabulary or has q = 0, or a row of q is not a
      distribution.
  """
  name = f'drafter {type(drafter).__name__}{trial}'
  tree, law, batch = drafter.tree, drafter.law, len(root_b)
  if (draft.tree, draft.law) != (tree, law):
    raise UserError(
      f'{name}: drafted {draft.law!r} on {draft.tree.size} nodes, expected its '
      f'law {law!r} on {tree.size}'
    )
  arrays = {
    'tokens': (np.int32, (batch, tree.size)),
    'valid': (np.bool_, (batch, tree.size)),
  }
  if law != 'deterministic' and tree.internal:
    arrays['q'] = (np.float32, (batch, len(tree.internal), vocab_size))
  for what, (dtype, shape) in arrays.items():
    array, dtype = getattr(draft, what), np.dtype(dtype).name
    got = None if array is None else (array.shape, str(array.dtype))
    if got != (shape, dtype):
      raise UserError(
        f'{name}: draft.{what}: got {got}, expected {shape}, {dtype}'
      )
  tokens, valid = draft.tokens, reached(draft)
  is_outside = (tokens < 0) | (tokens >= vocab_size)
  faults = {
    'tokens outside of the vocabulary': valid & is_outside,
    'a root that is not the last token': tokens[:, :1] != np.c_[root_b],
    'a root that is not valid': ~valid[:, :1],
  }
  for fault, is_wrong in faults.items():
    if is_wrong.any():
      raise UserError(f'{name}: drafted {fault}: {tokens[is_wrong.any(1)][0]}')
  if 'q' in arrays:
    _check_q(name, draft, valid)


def reached(draft: Draft) -> np.ndarray:
  """Returns True for nodes that are valid with all their ancestors, [B, N]."""
  valid = draft.valid.copy()
  for node, parent in enumerate(draft.tree.parents[1:], start=1):
    valid[:, node] &= valid[:, parent]
  return valid


def _check_q(name: str, draft: Draft, valid: np.ndarray) -> None:
  """Checks q after nodes with drafted children."""
  for i, node in enumerate(draft.tree.internal):
    children = list(draft.tree.children(node))
    is_drafted = valid[:, children]
    q_bv = draft.q[is_drafted.any(axis=1), i].astype(np.float64)
    sums = q_bv.sum(axis=-1)
    if not ((q_bv >= 0).all() and np.allclose(sums, 1, atol=1e-3)):
      raise UserError(
        f'{name}: q after node {node} is not a distribution: got rows that sum '
        f'to {np.round(sums[:4], 4).tolist()}, the smallest entry '
        f'{q_bv.min():.3g}, expected sums of 1 and no entry below 0'
      )
    tokens = np.where(is_drafted, draft.tokens[:, children], 0)
    q_bc = np.take_along_axis(draft.q[:, i], tokens, axis=1)
    if (is_drafted & (q_bc <= 0)).any():
      raise UserError(
        f'{name}: drafted a token after node {node} whose q is 0, so it cannot '
        'be a draw'
      )
