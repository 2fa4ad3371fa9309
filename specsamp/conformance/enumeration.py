"""The exact distribution of the tokens that a verifier emits, by enumeration.

Every possible draft is a row of a batch. P(draft) * stop * leave, summed over
the drafts, is the exact distribution of the tokens of one step. After the
target has continued shorter steps to depth + 1 tokens, their joint distribution
must be the target's. The verifier's code is the production code, in float64.
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


def _disjoint(p, q, rng):
  split = np.arange(p.shape[-1]) < p.shape[-1] // 2
  return normalize(p * split), normalize(q * ~split)


def _both(draw):
  return lambda p, q, rng: (draw(rng, p.shape), draw(rng, p.shape))


def _near(p, q, rng):
  return p, normalize(p * (1 + 1e-9 * rng.standard_normal(p.shape)))


# Functions that make p and q of one position in each context from dense ones.
_PAIRS = {
  'dense': lambda p, q, rng: (p, q),
  'zeros': _both(_with_zeros),
  'equal': lambda p, q, rng: (p, p.copy()),
  'disjoint': _disjoint,
  'one_hot_p': lambda p, q, rng: (_one_hot(rng, p.shape), q),
  'one_hot_q': lambda p, q, rng: (p, _one_hot(rng, p.shape)),
  'one_hot_both': _both(_one_hot),
  'near_equal': _near,
  'close': lambda p, q, rng: (p, normalize(p + 0.2 * q)),
  'dense_2': lambda p, q, rng: (p, q),
  'mild': _both(_mild),
  'mild_2': _both(_mild),
}
KINDS = tuple(_PAIRS)


@dataclasses.dataclass(frozen=True)
class Table:
  """Distributions of one target and one drafter, and the drafted candidates.

  All of them depend only on the tokens of the path.

  Attributes:
    name: kind of p and q, and name of the drafted candidates.
    p: depth + 1 arrays; p[i] has shape [V] * (i + 1).
    q: depth arrays of the same shapes.
    valid: depth bool arrays [V] * i + [C], for the children after each context.
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
  """Returns a table for each kind of p and q and each (name, valid) of `cuts`.

  The tables of one kind have the same p and q.
  """
  rng = np.random.default_rng(seed)
  tables = []
  for kind in kinds:
    pairs = []
    for i in range(depth + 1):
      dense = [_dense(rng, (vocab,) * (i + 1)) for _ in range(2)]
      pairs.append(_PAIRS[kind](*dense, rng))
    p, q = zip(*pairs, strict=True)
    for name, valid in cuts(rng):
      tables.append(Table(f'{kind}-{name}', [*p], [*q[:-1]], valid))
  return tables


@dataclasses.dataclass(frozen=True)
class Drafts:
  """All drafts of a table that have a positive probability, one per row.

  Attributes:
    tokens: int32 [B, N].
    p: float64 [B, N, V].
    q: float64 [B, I, V].
    valid: bool [B, N].
    weight: float64 [B], the probability of each draft; the sum is 1.
  """

  tokens: np.ndarray
  p: np.ndarray
  q: np.ndarray
  valid: np.ndarray
  weight: np.ndarray


@functools.cache
def _all_tokens(vocab: int, size: int) -> np.ndarray:
  """Returns all tokens of a tree with root 0, int32 [V^(N - 1), N]."""
  tokens = np.indices((1,) + (vocab,) * (size - 1), np.int32)
  tokens = tokens.reshape(size, -1).T
  tokens.flags.writeable = False
  return tokens


def context(tree: TokenTree, node: int) -> list[int]:
  """Returns the path to a node without the root."""
  return [n for n in tree.paths[node] if n > 0]


def enumerate_drafts(table: Table, tree: TokenTree, law: Law) -> Drafts:
  """Returns every draft of a table with its probability under the law.

  An invalid node has token 0.
  """
  vocab = table.p[0].shape[-1]
  tokens = _all_tokens(vocab, tree.size)

  def at(arrays, node):
    values = arrays[tree.depths[node]]
    values = values[tuple(tokens[:, context(tree, node)].T)]
    return np.broadcast_to(values, (len(tokens), values.shape[-1]))

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
      is_top = law == 'top_plus_one' and child != tree.children(node)[-1]
      if law == 'deterministic' or is_top:  # the most probable one left
        chance = x == left.argmax(-1)
      else:
        chance = left[rows, x] / np.where(total > 0, total, 1)
      weight = weight * np.where(valid[:, child], chance, x == 0)
      if law != 'iid':
        is_x = x[:, None] == np.arange(vocab)
        left = np.where(valid[:, child, None] & is_x, 0, left)
  keep = weight > 0
  return Drafts(tokens[keep], p[keep], q[keep], valid[keep], weight[keep])


@dataclasses.dataclass(frozen=True)
class Outcome:
  """Stop and leave probabilities of a verifier for each draft of a table.

  Stop probabilities are float [B, N], per node. Leave probabilities are
  [B, N, V], per node and token emitted there.
  """

  table: Table
  tree: TokenTree
  drafts: Drafts
  stop: np.ndarray
  leave: np.ndarray

  @property
  def joint(self) -> tuple[np.ndarray, np.ndarray]:
    """Joint distributions of depth + 1 tokens: emitted, and the target's."""
    p_of_depth = self.table.p
    vocab = p_of_depth[0].shape[-1]
    ended = [np.zeros((vocab**i, vocab)) for i in range(len(p_of_depth))]
    mass = (self.drafts.weight[:, None] * self.stop)[..., None] * self.leave
    for node, depth in enumerate(self.tree.depths):
      accepted = self.drafts.tokens[:, context(self.tree, node)]
      place = accepted @ vocab ** np.arange(depth)[::-1]
      np.add.at(ended[depth], place, mass[:, node])
    emitted, target = np.zeros(()), np.ones(())
    for i, p in enumerate(p_of_depth):
      # Steps that end with token i + 1, and earlier ends continued by p.
      emitted = emitted[..., None] * p + ended[i].reshape((vocab,) * (i + 1))
      target = target[..., None] * p
    return emitted, target

  @property
  def error(self) -> float:
    """Largest error of the joint distribution of depth + 1 tokens."""
    emitted, target = self.joint
    return np.abs(emitted - target).max()


# Compilation takes most of the time, and half as long at a lower optimization
# level of the machine code. The program is the same.
@functools.partial(
  jax.jit,
  static_argnums=0,
  compiler_options={'xla_backend_optimization_level': 0},
)
def _stop_and_leave(verifier, draft, p_bnv):
  """Returns stop [B, N], and leave [B, N, V] at every node."""
  batch, size, _ = p_bnv.shape
  leave = lambda node: verifier.leave_probs(
    draft, p_bnv, jnp.broadcast_to(node, (batch,))
  )
  leave_bnv = jax.vmap(leave, out_axes=1)(jnp.arange(size, dtype=jnp.int32))
  return verifier.stop_probs(draft, p_bnv), leave_bnv


def run_tables(
  verifier: Verifier,
  tables: Sequence[Table],
  tree: TokenTree,
  law: Law,
  drafts: Sequence[Drafts] | None = None,
  dtype: Any = np.float64,
) -> list[Outcome]:
  """Returns the outcomes of tables of one vocabulary and tree, from one call.

  By default the drafts are those of `enumerate_drafts`. The verifier computes
  in the dtype of p and q.

  Raises:
    UserError: the verifier returns another dtype or a wrong shape.
  """
  drafts = drafts or [enumerate_drafts(table, tree, law) for table in tables]
  ends = np.cumsum([len(part.weight) for part in drafts])
  # Padded with copies of the first row, so that runs share a compilation.
  vocab = drafts[0].p.shape[-1]
  num_rows = len(tables) * len(_all_tokens(vocab, tree.size))
  size = max(2048, 1 << (num_rows - 1).bit_length())

  def join(name):
    rows = np.concatenate([getattr(part, name) for part in drafts])
    padding = np.repeat(rows[:1], size - len(rows), axis=0)
    return jnp.asarray(np.concatenate([rows, padding]))

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
  shapes = (size, tree.size), (size, tree.size, vocab)
  methods = 'stop_probs', 'leave_probs'
  for method, output, shape in zip(methods, outputs, shapes, strict=True):
    if (output.shape, output.dtype) != (shape, dtype):
      raise UserError(
        f'{type(verifier).__name__}: {method} at all nodes: got {output.dtype} '
        f'{output.shape}, expected {np.dtype(dtype)} {shape}'
      )
  stop, leave = (np.split(np.asarray(output), ends)[:-1] for output in outputs)
  return [
    Outcome(table, tree, *arrays)
    for table, *arrays in zip(tables, drafts, stop, leave, strict=True)
  ]
