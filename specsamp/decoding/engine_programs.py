"""What an engine compiles: a batch whose rows come and go between rounds.

A prompt is prefilled as a batch of one row, in a state of the batch's capacity,
which is then written over a row of the batch. Nothing of it depends on the
row's number or on what else is in the batch.
"""

import dataclasses
import functools
from collections.abc import Hashable

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding.logprobs import Asked
from specsamp.decoding.loop import Decoder, Inputs
from specsamp.decoding.state import DecodeState, Prompts, with_axes
from specsamp.drafting.drafter import OfBatch
from specsamp.errors import UserError
from specsamp.sampling import draw
from specsamp.sharding import rules


@dataclasses.dataclass(eq=False)
class EnginePrograms:
  """What an engine runs.

  Attributes:
    prefill: of (inputs, prompts of one row); compiled for each width of these.
    spread: of (inputs, state of one row): one of a batch that is all done.
    insert: see `insert`; consumes the batch's state.
    burst: see `burst`; consumes the state.
    widths: prompt widths for which `prefill` is compiled; once there is one,
      the other programs are compiled too.
  """

  prefill: jax.stages.Wrapped
  spread: jax.stages.Wrapped
  insert: jax.stages.Wrapped
  burst: jax.stages.Wrapped
  widths: set[int] = dataclasses.field(default_factory=set)


@functools.lru_cache(maxsize=8)
def of(
  decoder: Decoder, batch: int, capacity: int, asked: Asked, shapes: Hashable
) -> EnginePrograms:
  """The programs of engines of one kind, compiled when they first run.

  Args:
    decoder: what they are compiled for.
    batch: rows.
    capacity: slots of the caches.
    asked: which log-probabilities are computed.
    shapes: equal for engines that run the same programs.
  """
  prefill = functools.partial(decoder.prefill, capacity=capacity, asked=asked)

  def spread(inputs: Inputs, row: DecodeState) -> DecodeState:
    rows = lambda *shape: jax.ShapeDtypeStruct((batch, *shape), jnp.int32)
    prompts = Prompts(rows(1), rows(), rows(), rows())
    whole = jax.eval_shape(prefill, inputs, prompts)
    state = jax.tree.map(_repeated, row, whole)
    state = state.replace(done=jnp.ones((batch,), bool))
    return with_axes(state, rules.constrain)

  return EnginePrograms(
    prefill=jax.jit(prefill),
    spread=jax.jit(spread),
    insert=jax.jit(functools.partial(insert), donate_argnums=0),
    burst=jax.jit(functools.partial(burst, decoder), donate_argnums=1),
  )


def insert(
  state: DecodeState, row: DecodeState, slot, seed, turn
) -> DecodeState:
  """The batch's state with another row in a slot.

  What has a row for each of the batch's takes this one's; what an adaptive
  drafter knows of the batch (`OfBatch`) stays. So do arrays without rows, such
  as tables of relative positions, but with a single slot, where nothing tells
  one from the other.

  Args:
    state: of B rows.
    row: of one, as the prefill left it.
    slot: int [], traced.
    seed: int [], of the row's draws.
    turn: int [], see `draw.apart`.
  """
  keys = draw.apart(draw.row_keys(seed[None]), turn[None])
  row = row.replace(keys=keys)

  is_of_batch = lambda node: isinstance(node, OfBatch)

  def put(old, new):
    if is_of_batch(old):
      return old
    if old.shape != new.shape:
      return _put_row(old, new, slot)
    return new if state.length.shape == (1,) else old

  return with_axes(
    jax.tree.map(put, state, row, is_leaf=is_of_batch), rules.constrain
  )


def burst(
  decoder: Decoder,
  inputs: Inputs,
  state: DecodeState,
  rounds,
  most_done,
  ended_b,
) -> DecodeState:
  """Some rounds.

  Args:
    decoder: static.
    inputs: of the rounds.
    state: before them.
    rounds: int [], how many at most.
    most_done: int [], they end as soon as more rows than these are done.
    ended_b: bool [B], rows that are not to go on, whatever they have emitted.
  """
  state = state.replace(done=state.done | ended_b)
  return decoder.decode(inputs, state, rounds, most_done)


def _put_row(old, new, slot):
  mesh = rules.mesh_in_use()
  if mesh is None or mesh.shape[rules.DATA] == 1:
    return jax.lax.dynamic_update_slice_in_dim(old, new, slot, axis=0)
  # Of rows that are split over the mesh XLA would gather all for a slice.
  row_b = np.arange(old.shape[0], dtype=np.int32)
  is_it_b = (row_b == slot).reshape((-1,) + (1,) * (old.ndim - 1))
  return jnp.where(is_it_b, new, old)


def _repeated(leaf, whole):
  """A leaf of a state of one row as one of the whole batch's."""
  try:
    return jnp.broadcast_to(leaf, whole.shape)
  except ValueError:
    raise UserError(
      f'drafter: its state has an array of shape {list(leaf.shape)} for one '
      f'row and {list(whole.shape)} for {whole.shape[0]}, expected rows on the '
      'first axis'
    ) from None
