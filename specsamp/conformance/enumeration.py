"""What a round emits, by enumeration: every drafted tree is a row of a batch.

The sum over the drafts of P(draft) * stop * leave is the exact distribution of
what a round emits; extended by the target's own it must be the target's joint
distribution of depth + 1 tokens. The code is the code of production; only the
dtype differs.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.errors import UserError
from specsamp.verification.verifier import Verifier

TOLERANCE = 1e-12


# Distributions p and q of one position, float64 [V] * i + [V]: in each context
# of i tokens.


def normalize(weights: np.ndarray) -> np.ndarray:
  return weights / weights.sum(-1, keepdims=True)


def _dense(rng, shape):
  return normalize(rng.gamma(0.7, size=shape) + 1e-3)


def _mild(rng, shape):
  return normalize(rng.gamma(2, size=shape))


def _with_zeros(rng, shape):
  weights = rng.gamma(0.7, size=shape) * (rng.random(shape) < 0.5)
  keep = rng.integers(shape[-1], size=shape[:-1])
  return normalize(weights + 0.1 * np.eye(shape[-1])[keep])


def _one_hot(rng, shape):
  return np.eye(shape[-1])[rng.integers(shape[-1], size=shape[:-1])]


def _pair(kind, rng, shape):
  """The distributions p and q of one position, in each context."""
  p, q = _dense(rng, shape), _dense(rng, shape)
  match kind:
    case 'dense' | 'dense_2':
      return p, q
    case 'mild' | 'mild_2':
      return _mild(rng, shape), _mild(rng, shape)
    case 'zeros':
      return _with_zeros(rng, shape), _with_zeros(rng, shape)
    case 'equal':
      return p, p.copy()
    case 'disjoint':
      split = np.arange(shape[-1]) < shape[-1] // 2
      return normalize(p * split), normalize(q * ~split)
    case 'one_hot_p':
      return _one_hot(rng, shape), q
    case 'one_hot_q':
      return p, _one_hot(rng, shape)
    case 'one_hot_both':
      return _one_hot(rng, shape), _one_hot(rng, shape)
    case 'near_equal':
      return p, normalize(p * (1 + 1e-9 * rng.standard_normal(shape)))
    case 'close':
      return p, normalize(p + 0.2 * q)


KINDS = (
  'dense',
  'zeros',
  'equal',
  'disjoint',
  'one_hot_p',
  'one_hot_q',
  'one_hot_both',
  'near_equal',
  'close',
  'dense_2',
  'mild',
  'mild_2',
)


@dataclasses.dataclass(frozen=True)
class Table:
  """One target, one draft, and which candidates are drafted.

  Distributions depend on the whole context: two nodes share one iff their paths
  spell the same tokens.

  Attributes:
    name: of the kind of p and q, and of what is drafted.
    p: depth + 1 arrays; p[i] has shape [V] * (i + 1).
    q: depth arrays.
    valid: depth bool arrays [V] * i + [C]: of the children after each context.
  """

  name: str
  p: list[np.ndarray]
  q: list[np.ndarray]
  valid: list[np.ndarray]


def make_tables(
  vocab: int,
  depth: int,
  cuts: Callable[[np.random.Generator], Iterable[tuple[str, list]]],
  seed: int,
  kinds: Sequence[str] = KINDS,
) -> list[Table]:
  """A table for each kind of p and q and each (name, valid) of `cuts`.

  The tables of one kind share their p and q, whatever is drafted.

  Args:
    vocab: V.
    depth: of the trees that they are for.
    cuts: of a generator the (name, `Table.valid`) of each.
    seed: of the generator.
    kinds: of p and q.
  """
  rng = np.random.default_rng(seed)
  tables = []
  for kind in kinds:
    pairs = [_pair(kind, rng, (vocab,) * (i + 1)) for i in range(depth + 1)]
    p, q = [pair[0] for pair in pairs], [pair[1] for pair in pairs[:-1]]
    for name, valid in cuts(rng):
      tables.append(Table(f'{kind}-{name}', p, q, valid))
  return tables


@dataclasses.dataclass(frozen=True)
class Drafts:
  """All drafted trees of a table of positive chance, a row each.

  Attributes:
    tokens: int32 [B, N].
    p: float64 [B, N, V].
    q: float64 [B, I, V].
    valid: bool [B, N].
    weight: float64 [B], the chance of each; they sum to 1.
  """

  tokens: np.ndarray
  p: np.ndarray
  q: np.ndarray
  valid: np.ndarray
  weight: np.ndarray


@functools.cache
def _all_tokens(vocab, size):
  """int32 [V^(N - 1), N]: every way to fill a tree; the root is token 0."""
  tokens = np.indices((1,) + (vocab,) * (size - 1), np.int32)
  tokens = tokens.reshape(size, -1).T
  tokens.flags.writeable = False
  return tokens


def context(tree: TokenTree, node: int) -> list[int]:
  """The drafted nodes on the path to a node, and it."""
  return [n for n in tree.paths[node] if n > 0]


def enumerate_drafts(table: Table, tree: TokenTree, law: Law) -> Drafts:
  """Every draft of a table, and its chance under the law that it states.

  A node that is not drafted holds token 0, whatever its siblings hold.
  """
  vocab = table.p[0].shape[-1]
  tokens = _all_tokens(vocab, tree.size)
  at = lambda laws, node: np.broadcast_to(
    laws[tree.depths[node]][tuple(tokens[:, context(tree, node)].T)],
    (len(tokens), laws[tree.depths[node]].shape[-1]),
  )
  p = np.stack([at(table.p, node) for node in range(tree.size)], axis=1)
  q = np.zeros((len(tokens), len(tree.internal), vocab))
  valid = np.ones(tokens.shape, bool)
  weight = np.ones(len(tokens))
  rows = np.arange(len(tokens))
  for i, node in enumerate(tree.internal):
    q[:, i] = left = at(table.q, node)
    drafted = at(table.valid, node)
    for rank, child in enumerate(tree.children(node)):
      x = tokens[:, child]
      total = left.sum(-1)
      valid[:, child] = valid[:, node] & drafted[:, rank] & (total > 0)
      is_best = law == 'top_plus_one' and child != tree.children(node)[-1]
      if law == 'deterministic' or is_best:  # the best left
        chance = x == left.argmax(-1)
      else:
        chance = left[rows, x] / np.where(total > 0, total, 1)
      weight = weight * np.where(valid[:, child], chance, x == 0)
      if law != 'iid':
        left = np.where(
          valid[:, child, None] & (x[:, None] == np.arange(vocab)), 0, left
        )
  keep = weight > 0
  return Drafts(tokens[keep], p[keep], q[keep], valid[keep], weight[keep])


@dataclasses.dataclass(frozen=True)
class Round:
  """What a verifier does with each draft of a table.

  Attributes:
    table: the table.
    tree: the shape of its drafts.
    drafts: its drafts.
    stop: [B, N], the chance to stop at each node.
    leave: [B, N, V], the distribution of what is emitted there.
  """

  table: Table
  tree: TokenTree
  drafts: Drafts
  stop: np.ndarray
  leave: np.ndarray

  @property
  def joint(self) -> tuple[np.ndarray, np.ndarray]:
    """Of depth + 1 tokens, [V] * (depth + 1): as emitted, as the target's."""
    of_target = self.table.p
    vocab = of_target[0].shape[-1]
    ended = [np.zeros((vocab**i, vocab)) for i in range(len(of_target))]
    mass = (self.drafts.weight[:, None] * self.stop)[..., None] * self.leave
    for node, depth in enumerate(self.tree.depths):
      accepted = self.drafts.tokens[:, context(self.tree, node)]
      place = accepted @ vocab ** np.arange(depth)[::-1]
      np.add.at(ended[depth], place, mass[:, node])
    emitted, target = np.zeros(()), np.ones(())
    for i, p in enumerate(of_target):
      # What ends with token i + 1, next to what ended before, extended.
      emitted = emitted[..., None] * p + ended[i].reshape((vocab,) * (i + 1))
      target = target[..., None] * p
    return emitted, target

  @property
  def error(self) -> float:
    """The largest error of the joint distribution of depth + 1 tokens."""
    emitted, target = self.joint
    return np.abs(emitted - target).max()


# What takes long is compiling, which a lower level of machine code optimization
# halves; the program is the same.
@functools.partial(
  jax.jit,
  static_argnums=0,
  compiler_options={'xla_backend_optimization_level': 0},
)
def _stop_and_leave(verifier, draft, p_bnv):
  """stop [B, N] and leave [B, N, V], the latter node by node."""
  batch, size, _ = p_bnv.shape
  leave = lambda node: verifier.leave_probs(
    draft, p_bnv, jnp.broadcast_to(node, (batch,))
  )
  leave_bnv = jax.vmap(leave, out_axes=1)(jnp.arange(size, dtype=jnp.int32))
  return verifier.stop_probs(draft, p_bnv), leave_bnv


def run(
  verifier: Verifier,
  tables: Sequence[Table],
  tree: TokenTree,
  law: Law,
  drafts: Sequence[Drafts] | None = None,
  dtype: Any = np.float64,
) -> list[Round]:
  """The rounds of all tables of one tree, in one call on the host.

  Args:
    verifier: the rule.
    tables: the tables, of one vocabulary.
    tree: the shape of the drafts.
    law: the law that the drafts state.
    drafts: of each table; None for those drawn by the law that is stated.
    dtype: what the verifier computes in.

  Raises:
    UserError: it computes in another dtype, or probabilities of other shapes.
  """
  drafts = drafts or [enumerate_drafts(table, tree, law) for table in tables]
  ends = np.cumsum([len(part.weight) for part in drafts])
  # Filled up with copies of the first row, so that runs share a compilation.
  most = len(tables) * len(_all_tokens(drafts[0].p.shape[-1], tree.size))
  size = max(2048, 1 << (most - 1).bit_length())

  def join(name):
    rows = np.concatenate([getattr(part, name) for part in drafts])
    fill = np.repeat(rows[:1], size - len(rows), axis=0)
    return jnp.asarray(np.concatenate([rows, fill]))

  on_host = jax.default_device(jax.local_devices(backend='cpu')[0])
  with jax.enable_x64(True), on_host:
    is_drawn = law != 'deterministic' and tree.internal
    draft = Draft(
      tokens=join('tokens'),
      q=join('q').astype(dtype) if is_drawn else None,
      tree=tree,
      law=law,
      valid=join('valid'),
    )
    outputs = _stop_and_leave(verifier, draft, join('p').astype(dtype))
  for name, output in zip(('stop_probs', 'leave_probs'), outputs, strict=True):
    if output.dtype != dtype:
      raise UserError(
        f'{type(verifier).__name__}: {name}: got {output.dtype}, expected '
        f'{np.dtype(dtype)}, the dtype of p'
      )
  stop, leave = outputs
  shape = (size, tree.size, drafts[0].p.shape[-1])
  if (stop.shape, leave.shape) != (shape[:2], shape):
    raise UserError(
      f'{type(verifier).__name__}: got stop_probs of shape {stop.shape} and '
      f'leave_probs of shape {leave.shape[::2]}, expected {shape[:2]} and '
      f'{shape[::2]}'
    )
  outputs = [np.split(np.asarray(output), ends)[:-1] for output in outputs]
  return [
    Round(table, tree, part, stop, leave)
    for table, part, stop, leave in zip(tables, drafts, *outputs, strict=True)
  ]
