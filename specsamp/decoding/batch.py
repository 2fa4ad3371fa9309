"""A compiled batch whose slots receive prompts between rounds.

A prompt is prefilled as a batch of one row, in a state of the batch's capacity.
That row is then written over a row of the batch. The new row does not depend on
its index or on the rest of the batch.
"""

import dataclasses
import functools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding import arguments
from specsamp.decoding.arguments import HostRows
from specsamp.decoding.logprobs import LogprobOptions
from specsamp.decoding.loop import Decoder, Inputs
from specsamp.decoding.state import DecodeState, Prompts, with_axes
from specsamp.drafting.adaptive import AdaptiveDrafter
from specsamp.drafting.drafter import (
  Drafter,
  SharedState,
  cache_slots,
  with_params,
)
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.utils import progress
from specsamp.verification.verifier import Verifier


@dataclasses.dataclass(eq=False)
class SlotPrograms:
  """Programs of one kind of batches with slots.

  Attributes:
    prefill: (inputs, prompts of one row) -> state; compiled for each width.
    spread: (inputs, state of one row) -> state of B rows that are done.
    insert: see `insert`; consumes the batch's state.
    burst: (inputs, state, rounds, max_done, bool [B] of slots without a sample)
      -> state after `Decoder.decode`; consumes the state.
    widths: prompt widths for which `prefill` is compiled. If it is not empty,
      the other programs are compiled too.
  """

  prefill: jax.stages.Wrapped
  spread: jax.stages.Wrapped
  insert: jax.stages.Wrapped
  burst: jax.stages.Wrapped
  widths: set[int] = dataclasses.field(default_factory=set)


@functools.lru_cache(maxsize=8)
def slot_programs_for(
  decoder: Decoder,
  batch: int,
  capacity: int,
  logprob_options: LogprobOptions | None,
  shapes: Hashable,
) -> SlotPrograms:
  """Returns the programs of batches of one kind, compiled or not.

  Batches of equal `shapes` run the same programs.
  """
  prefill = functools.partial(
    decoder.prefill, capacity=capacity, logprob_options=logprob_options
  )

  def spread(inputs: Inputs, row: DecodeState) -> DecodeState:
    rows = lambda *shape: jax.ShapeDtypeStruct((batch, *shape), jnp.int32)
    prompts = Prompts(rows(1), rows(), rows(), rows())
    whole = jax.eval_shape(prefill, inputs, prompts)
    repeat = lambda leaf, whole: jnp.broadcast_to(leaf, whole.shape)
    state = jax.tree.map(repeat, row, whole)
    state = state.replace(done=jnp.ones((batch,), bool))
    return with_axes(state, rules.constrain)

  def burst(inputs: Inputs, state: DecodeState, rounds, max_done, is_idle_b):
    state = state.replace(done=state.done | is_idle_b)
    return decoder.decode(inputs, state, rounds, max_done)

  return SlotPrograms(
    prefill=jax.jit(prefill),
    spread=jax.jit(spread),
    insert=jax.jit(functools.partial(insert), donate_argnums=0),
    burst=jax.jit(burst, donate_argnums=1),
  )


def insert(
  state: DecodeState, row: DecodeState, slot, seed, turn
) -> DecodeState:
  """Returns the batch's state with another row, after its prefill, in a slot.

  Every array with a row for each row of the batch takes the new row.
  `SharedState` stays. Arrays without rows, such as tables of relative
  positions, stay too, except in a batch of one slot, where their shapes do not
  reveal them. `slot`, `seed` and `turn` (see `draw.apart`) are int [].
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


class SlotBatch:
  """Arrays of an engine, on the host and on the device.

  `is_stale` is True if the drafter was trained for other target weights.
  """

  def __init__(
    self,
    model: LanguageModel,
    drafter: Drafter | None,
    verifier: str | Verifier | None,
    slots: int,
    max_length: int,
    logprob_options: LogprobOptions | None,
    prefill_chunk: int | None = None,
  ):
    # Parameters of later updates are committed to a device, a different type
    # to a jit than uncommitted ones. So these are committed too.
    params = _place_like(model.params, model.params)
    model = dataclasses.replace(model, params=params)
    decoder, drafter = arguments.make_decoder(
      model, drafter, verifier, 1, prefill_chunk=prefill_chunk
    )
    if isinstance(drafter, AdaptiveDrafter):
      drafter = drafter.replace(refilled=True)
    self.model = model
    self.is_stale = False
    self.slots = slots
    self.max_length = max_length
    idle = arguments.check_rows(model, [[0]] * slots, max_new_tokens=1)
    self._inputs = Inputs(
      params=model.params,
      drafter=_place_like(drafter, drafter),
      # Values of requests are written into these arrays.
      sampling=jax.tree.map(np.array, idle.sampling),
      stop_tokens=np.array(idle.stop_tokens),
    )
    leaves, structure = jax.tree.flatten(self._inputs.replace(params=None))
    self._programs = slot_programs_for(
      decoder,
      slots,
      arguments.capacity(max_length + cache_slots(drafter), model.mesh),
      logprob_options,
      (structure, tuple(map(jax.typeof, leaves)), model.mesh),
    )
    self._state: DecodeState | None = None
    self._needs_distinct_bits = decoder.needs_distinct_bits(drafter)
    self._num_inserted = 0

  def rows(self, prompts, **row_options) -> HostRows:
    """Returns checked rows of requests; see `arguments.check_rows`."""
    rows = arguments.check_rows(self.model, prompts, **row_options)
    longest = max(rows.prompts.limit)
    if longest > self.max_length:
      raise UserError(
        f'prompt: got {longest} tokens with the new ones, expected at most '
        f'{self.max_length}, the max_length of the engine'
      )
    num_stops = self._inputs.stop_tokens.shape[1]
    if rows.stop_tokens.shape[1] != num_stops:
      raise UserError(
        f'stop_tokens: got more than {num_stops}, expected at most as many'
      )
    return rows

  def one_prompt(self, prompts: Prompts, i: int) -> Prompts:
    """Returns one prompt, with the width that `prefill` is compiled for."""
    one = jax.tree.map(lambda rows: rows[i : i + 1], prompts)
    length = one.length[0]
    tokens = np.zeros((1, self._width(length)), np.int32)
    tokens[0, :length] = one.tokens[0, :length]
    return one.replace(tokens=tokens)

  def prefill(self, prompts: Prompts) -> DecodeState:
    """Returns the state of one row after its prompt, for `insert`."""
    self._compile([prompts])
    return self._run(self._programs.prefill, self._inputs, prompts)

  def insert(
    self,
    row: DecodeState,
    slot: int,
    seed: int,
    sampling: SamplingParams,
    stop_tokens: np.ndarray,
  ) -> None:
    """Puts a prompt into a slot, in place of an earlier one.

    `row` is the state from `prefill`, which is not consumed. Sampling values
    are [], stop tokens int32 [K].
    """
    if self._state is None:
      self._state = self._run(self._programs.spread, self._inputs, row)
    turn = self._num_inserted if self._needs_distinct_bits else 0
    numbers = map(np.int32, (slot, seed, turn))
    self._state = self._run(self._programs.insert, self._state, row, *numbers)
    self._num_inserted += 1

    def write(rows, value):
      rows[slot] = value

    jax.tree.map(write, self._inputs.sampling, sampling)
    self._inputs.stop_tokens[slot] = stop_tokens

  def burst(
    self, rounds: int, max_done: int, is_idle: Sequence[bool]
  ) -> DecodeState:
    """Runs rounds of all slots and returns a host copy of the state.

    The burst ends after `rounds`, or once more than `max_done` rows are done.
    `is_idle` is True for each slot without a sample.
    """
    self._state = self._run(
      self._programs.burst,
      self._inputs,
      self._state,
      np.int32(rounds),
      np.int32(max_done),
      np.asarray(is_idle),
    )
    return meshes.fetch(self._state.visible)

  def update_params(self, target: Any, drafter: Any, stale: bool) -> None:
    """Replaces parameters and empties the slots: see `Engine.update_params`."""
    model = self.model
    if target is not None:
      target = _place_like(model.params, target, 'target')
      model = dataclasses.replace(model, params=target)
    old = self._inputs.drafter
    new = _place_like(old, with_params(old, drafter, target), 'drafter')
    is_stale = self.is_stale and drafter is None
    if target is not None:
      try:
        new.check(model, 1)
        is_stale = False
      except UserError as error:
        is_stale = drafter is None
        if is_stale and not stale:
          raise UserError(f'{error}; stale=True drafts with it') from None
    self.model, self.is_stale = model, is_stale
    self._inputs = self._inputs.replace(params=model.params, drafter=new)
    self.drop()

  def compile(self) -> None:
    """Compiles the programs for every prompt, and empties the slots."""
    one = np.ones((1,), np.int32)
    widths = {self._width(n) for n in range(1, self.max_length)}
    self._compile(
      Prompts(np.zeros((1, width), np.int32), one, one, 0 * one)
      for width in sorted(widths)
    )
    self.drop()

  def _compile(self, prompts: Iterable[Prompts]) -> None:
    """Compiles the programs for prompts of new widths, with a progress bar."""
    compiled = self._programs.widths
    cold = [one for one in prompts if one.tokens.shape[1] not in compiled]
    for one in progress.bar('compiling', cold, unit='width'):
      # Not a run: that of a wide prompt takes long.
      self._run(self._programs.prefill.lower, self._inputs, one).compile()
      if not compiled:
        self._compile_others(one)
      compiled.add(one.tokens.shape[1])

  def _compile_others(self, prompts: Prompts) -> None:
    """Compiles the programs that follow a prefill, and empties the slots."""
    row = self._run(self._programs.prefill, self._inputs, prompts)
    sampling = SamplingParams().broadcast(1)
    sampling = jax.tree.map(lambda x: x[0], sampling)
    # On a mesh the output of one program may be sharded differently from that
    # of another, which is another type to the next program.
    for slot in (0, 0, self.slots - 1):
      self.insert(row, slot, 0, sampling, self._inputs.stop_tokens[slot])
      self.burst(1, self.slots - 1, [True] * self.slots)
      self.insert(row, slot, 0, sampling, self._inputs.stop_tokens[slot])
    self.drop()

  def drop(self) -> None:
    """Empties the slots."""
    self._state = None
    self._num_inserted = 0

  def _width(self, length: int) -> int:
    """Returns the width of a prompt's bucket, within `max_length`."""
    return min(arguments.slots(self.model, length), self.max_length)

  def _run(self, program, *inputs):
    with meshes.use(self.model.mesh):
      return program(*inputs)


def _place_like(old: Any, new: Any, what: str = '') -> Any:
  """Returns new arrays, placed on the devices of the old ones.

  Raises:
    UserError: the structure, a shape or a dtype differs; `what` names the
      arrays.
  """

  def names(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path) for path, _ in leaves}

  if jax.tree.structure(old) != jax.tree.structure(new):
    different = sorted(names(old) ^ names(new))
    raise UserError(
      f'{what}: got parameters in another tree than the present ones; only one '
      f'has {", ".join(different[:3]) or "its static fields"}'
    )
  mesh = meshes.of(old)
  if mesh is None:
    places = jax.tree.map(lambda leaf: getattr(leaf, 'sharding', None), old)
  else:
    places = rules.param_formats(old, mesh)

  def place(path, old, new, sharding):
    if not isinstance(old, jax.Array):
      return new
    got = jnp.shape(new), jnp.result_type(new)
    if got != (old.shape, old.dtype):
      raise UserError(
        f'{what}{jax.tree_util.keystr(path)}: got {list(got[0])} {got[1]}, '
        f'expected {list(old.shape)} {old.dtype}'
      )
    return jax.device_put(new, sharding)

  return jax.tree_util.tree_map_with_path(place, old, new, places)
