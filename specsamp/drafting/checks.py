"""What a drafter of a user's own is asked before anything is compiled with it.

Whether it has what a drafter has, and whether its first draft is one. That its
tokens were drawn from its q is what `specsamp.conformance` tests.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError, check_name
from specsamp.language_model import LanguageModel
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes
from specsamp.utils import user_modules

_PROMPT_LENS = (3, 1)
_SLOTS = 16  # of a text, beside the nodes of a draft


def check_parts(drafter: Any) -> None:
  """Refuses what is no drafter, and names what it lacks.

  Raises:
    UserError: it does not derive from `Drafter` or is no pytree, or has no
      `propose`, no tree, no law or a static field without a hash.
  """
  name = type(drafter).__name__
  if not isinstance(drafter, Drafter):
    raise UserError(
      f'drafter: got a {name}, expected what derives from '
      'specsamp.drafting.Drafter'
    )
  if type(drafter).propose is Drafter.propose:
    raise UserError(f'drafter {name}: has no method propose')
  for method in ('check', 'init', 'propose', 'commit'):
    if not callable(getattr(drafter, method)):
      raise UserError(f'drafter {name}: {method} is no method')
  tree, law = getattr(drafter, 'tree', None), getattr(drafter, 'law', None)
  if not isinstance(tree, TokenTree):
    raise UserError(f'drafter {name}: tree: got {tree!r}, expected a TokenTree')
  check_name(f'drafter {name}: law', law, get_args(Law))
  for path, leaf in jax.tree_util.tree_leaves_with_path(drafter):
    if leaf is drafter:
      raise UserError(
        f'drafter {name}: is no pytree, expected a flax.struct.dataclass'
      )
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float):
      raise UserError(
        f'drafter {name}: {jax.tree_util.keystr(path)} is a '
        f'{type(leaf).__name__}, expected an array, or a static field: '
        'struct.field(pytree_node=False)'
      )
  is_one = dataclasses.is_dataclass(drafter)
  for field in dataclasses.fields(drafter) if is_one else ():
    if field.metadata.get('pytree_node', True):
      continue
    try:
      hash(getattr(drafter, field.name))
    except TypeError as error:
      raise UserError(
        f'drafter {name}: {field.name}: {error}; programs are compiled for a '
        'static field, so it must be hashable, such as a number, a text or a '
        'tuple of them'
      ) from None


def check_first_draft(drafter: Drafter, target: LanguageModel) -> None:
  """Drafts once after two short prompts, and refuses what is no draft.

  What it reads of the target are zeros: no pass of the target is made.

  Raises:
    UserError: what `check_draft` refuses, or what the drafter raised.
  """
  config = target.config
  batch, width = len(_PROMPT_LENS), max(_PROMPT_LENS)
  capacity = _SLOTS + drafter.room
  features_bpd = jnp.zeros(
    (batch, width, config.width * max(len(drafter.taps), 1)), config.dtype
  )
  tokens_bp = np.arange(batch * width, dtype=np.int32) % config.num_tokens
  tokens_bp = tokens_bp.reshape(batch, width)
  length_b = np.asarray(_PROMPT_LENS, np.int32)
  tokens_bs = np.pad(tokens_bp, ((0, 0), (0, capacity - width)))
  sampling = SamplingParams().broadcast(batch)

  @jax.jit
  def first(drafter, features_bpd):
    state = drafter.init(
      tokens_bp, jnp.asarray(length_b), features_bpd, capacity
    )
    keys_b = draw.row_keys(jnp.arange(batch, dtype=jnp.int32))
    draft, _ = drafter.propose(
      state, jnp.asarray(tokens_bs), jnp.asarray(length_b), sampling, keys_b
    )
    return draft

  lengths = ' and '.join(map(str, _PROMPT_LENS))
  trial = f', tried after prompts of {lengths} tokens'
  name = f'{type(drafter).__name__}{trial}'
  with meshes.use(target.mesh):
    try:
      draft = first(drafter, features_bpd)
    except UserError:
      raise
    except Exception as error:
      raise UserError(
        f'drafter {name}: the first draft failed: '
        f'{user_modules.describe(error)}'
      ) from error
  roots_b = tokens_bp[range(batch), length_b - 1]
  if not isinstance(draft, Draft):
    raise UserError(
      f'drafter {name}: propose: got a {type(draft).__name__}, expected a '
      'Draft and the state'
    )
  check_draft(drafter, meshes.fetch(draft), roots_b, config.vocab_size, trial)


def check_draft(
  drafter: Drafter,
  draft: Draft,
  root_b: Sequence[int],
  vocab_size: int,
  trial: str = '',
) -> None:
  """Refuses what is no draft of this drafter.

  Args:
    drafter: whose it is.
    draft: on the host.
    root_b: the last token of each row.
    vocab_size: V.
    trial: words that name the trial behind the drafter's name.

  Raises:
    UserError: another tree or law than the drafter's, shapes or dtypes that do
      not fit, tokens outside of the vocabulary or of q = 0, or rows of q that
      are no distributions.
  """
  name = f'drafter {type(drafter).__name__}{trial}'
  tree, law, batch = drafter.tree, drafter.law, len(root_b)
  if (draft.tree, draft.law) != (tree, law):
    raise UserError(
      f'{name}: drafted {draft.law!r} on {draft.tree.size} nodes, expected its '
      f'own {law!r} on {tree.size}'
    )
  internal = list(tree.internal)
  arrays = {
    'tokens': (np.int32, (batch, tree.size)),
    'valid': (np.bool_, (batch, tree.size)),
  }
  if law != 'deterministic' and internal:
    arrays['q'] = (np.float32, (batch, len(internal), vocab_size))
  for what, (dtype, shape) in arrays.items():
    array = getattr(draft, what)
    got = None if array is None else (array.shape, str(array.dtype))
    if got != (shape, np.dtype(dtype).name):
      raise UserError(
        f'{name}: draft.{what}: got {got}, expected {shape}, '
        f'{np.dtype(dtype).name}'
      )
  tokens, valid = draft.tokens, reached(draft)
  faults = {
    'tokens outside of the vocabulary': valid
    & ((tokens < 0) | (tokens >= vocab_size)),
    'a root that is not the last token': (tokens != np.c_[root_b])[:, :1],
    'a root that is not valid': ~valid[:, :1],
  }
  for what, rows in faults.items():
    if rows.any():
      raise UserError(f'{name}: drafted {what}: {tokens[rows.any(1)][0]}')
  if 'q' in arrays:
    _check_q(name, draft, valid)


def reached(draft: Draft) -> np.ndarray:
  """bool [B, N]: the nodes that may be accepted, drafted as all before them.

  Args:
    draft: on the host.
  """
  valid = draft.valid.copy()
  for node, parent in enumerate(draft.tree.parents[1:], start=1):
    valid[:, node] &= valid[:, parent]
  return valid


def _check_q(name: str, draft: Draft, valid: np.ndarray) -> None:
  """Of the nodes after which something was drafted."""
  for i, node in enumerate(draft.tree.internal):
    children = list(draft.tree.children(node))
    read = valid[:, children]
    q_bv = draft.q[read.any(axis=1), i].astype(np.float64)
    sums = q_bv.sum(axis=-1)
    if not ((q_bv >= 0).all() and np.allclose(sums, 1, atol=1e-3)):
      raise UserError(
        f'{name}: q after node {node} is no distribution: got rows that sum to '
        f'{np.round(sums[:4], 4).tolist()}, the least entry {q_bv.min():.3g}, '
        'expected none below 0 and sums of 1'
      )
    q_bc = np.take_along_axis(
      draft.q[:, i], np.where(read, draft.tokens[:, children], 0), axis=1
    )
    if (read & (q_bc <= 0)).any():
      raise UserError(
        f'{name}: drafted a token after node {node} whose q is 0, of which it '
        'cannot have been drawn'
      )
