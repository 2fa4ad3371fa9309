"""Compiled programs of an engine: a batch whose rows change between rounds.

A prompt is prefilled as a batch of one row, in a state of the batch's capacity.
That row is then written over a row of the batch. It does not depend on the
index of that row or on the rest of the batch.
"""

import dataclasses
import functools
from collections.abc import Hashable

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding.logprobs import LogprobOptions
from specsamp.decoding.loop import Decoder, Inputs
from specsamp.decoding.state import DecodeState, Prompts, with_axes
from specsamp.drafting.drafter import SharedState
from specsamp.errors import UserError
from specsamp.sampling import draw
from specsamp.sharding import rules


@dataclasses.dataclass(eq=False)
class EnginePrograms:
  """Programs of engines of one kind.

  Attributes:
    prefill: of (inputs, prompts of one row); compiled for each width of these.
    spread: of (inputs, state of one row); returns the state of a batch whose
      rows are all done.
    insert: see `insert`; consumes the batch's state.
    burst: `Decoder.decode` of (inputs, state, rounds, max_done, bool [B] of
      slots without a sample); consumes the state.
    widths: prompt widths for which `prefill` is compiled. If there is one, the
      other programs are compiled too.
  """

  prefill: jax.stages.Wrapped
  spread: jax.stages.Wrapped
  insert: jax.stages.Wrapped
  burst: jax.stages.Wrapped
  widths: set[int] = dataclasses.field(default_factory=set)


@functools.lru_cache(maxsize=8)
def engine_programs_for(
  decoder: Decoder,
  batch: int,
  capacity: int,
  logprob_options: LogprobOptions,
  shapes: Hashable,
) -> EnginePrograms:
  """Returns the programs of engines of one kind, compiled at their first run.

  Args:
    decoder: static parts of the programs.
    batch: rows.
    capacity: slots of the caches.
    logprob_options: log-probabilities that are recorded.
    shapes: equal for engines that run the same programs.
  """
  prefill = functools.partial(
    decoder.prefill, capacity=capacity, logprob_options=logprob_options
  )

  def spread(inputs: Inputs, row: DecodeState) -> DecodeState:
    rows = lambda *shape: jax.ShapeDtypeStruct((batch, *shape), jnp.int32)
    prompts = Prompts(rows(1), rows(), rows(), rows())
    whole = jax.eval_shape(prefill, inputs, prompts)
    state = jax.tree.map(_repeat, row, whole)
    state = state.replace(done=jnp.ones((batch,), bool))
    return with_axes(state, rules.constrain)

  def burst(inputs: Inputs, state: DecodeState, rounds, max_done, is_idle_b):
    state = state.replace(done=state.done | is_idle_b)
    return decoder.decode(inputs, state, rounds, max_done)

  return EnginePrograms(
    prefill=jax.jit(prefill),
    spread=jax.jit(spread),
    insert=jax.jit(functools.partial(insert), donate_argnums=0),
    burst=jax.jit(burst, donate_argnums=1),
  )


def insert(
  state: DecodeState, row: DecodeState, slot, seed, turn
) -> DecodeState:
  """Returns the batch's state with another row in a slot.

  Every array with a row for each row of the batch takes the new row.
  `SharedState` stays. Arrays without rows, such as tables of relative
  positions, stay too, unless there is one slot: then nothing distinguishes
  them.

  Args:
    state: state of B rows.
    row: state of one row after its prefill.
    slot: int [], traced.
    seed: int [], seed of the row's draws.
    turn: int [], see `draw.apart`.
  """
  keys = draw.apart(draw.row_keys(seed[None]), turn[None])
  is_shared = lambda node: isinstance(node, SharedState)

  def replace(old, new):
    if is_shared(old):
      return old
    if old.shape != new.shape:
      return _replace_row(old, new, slot)
    return new if state.length.shape == (1,) else old

  state = jax.tree.map(
    replace, state, row.replace(keys=keys), is_leaf=is_shared
  )
  return with_axes(state, rules.constrain)


def _replace_row(old, new, slot):
  mesh = rules.mesh_in_use()
  if mesh is None or mesh.shape[rules.DATA] == 1:
    return jax.lax.dynamic_update_slice_in_dim(old, new, slot, axis=0)
  # For a slice of rows that are split over the mesh XLA would gather them all.
  row_b = np.arange(old.shape[0], dtype=np.int32)
  is_slot_b = (row_b == slot).reshape((-1,) + (1,) * (old.ndim - 1))
  return jnp.where(is_slot_b, new, old)


def _repeat(leaf, whole):
  """Returns a leaf of one row's state in the shape of the whole batch's."""
  try:
    return jnp.broadcast_to(leaf, whole.shape)
  except ValueError:
    raise UserError(
      f'drafter: its state has an array of shape {list(leaf.shape)} for one '
      f'row and {list(whole.shape)} for {whole.shape[0]}, expected rows on the '
      'first axis'
    ) from None
