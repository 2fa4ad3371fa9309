"""A compiled batch whose slots receive prompts between rounds.

A prompt is prefilled as a batch of one row, in a state of the batch's capacity.
That row is then written over a row of the batch. The new row does not depend on
its index or on the rest of the batch.

If a prompt begins like the text of a row, finished or not, a copy of that row
is prefilled with the rest of the prompt alone.
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
from specsamp.decoding.prefixes import HeldTexts, Prefix
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
    take: (inputs, state, slot) -> state of one row, which shares no memory.
    resume: (inputs, state of one row, prompts, start, tokens in a pass) ->
      state; compiled for each number of tokens, consumes the state.
    spread: (inputs, state of one row) -> state of B rows that are done.
    insert: see `insert`; consumes the batch's state.
    burst: (inputs, state, rounds, max_done, bool [B] of slots without a sample)
      -> state after `Decoder.decode`; consumes the state.
    widths: prompt widths for which `prefill` is compiled. If it is not empty,
      `spread`, `insert` and `burst` are compiled too.
    sizes: numbers of tokens for which `resume` is compiled.
  """

  prefill: jax.stages.Wrapped
  take: jax.stages.Wrapped
  resume: jax.stages.Wrapped
  spread: jax.stages.Wrapped
  insert: jax.stages.Wrapped
  burst: jax.stages.Wrapped
  widths: set[int] = dataclasses.field(default_factory=set)
  sizes: set[int] = dataclasses.field(default_factory=set)


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

  def shapes_of(inputs: Inputs, batch: int) -> DecodeState:
    rows = lambda *shape: jax.ShapeDtypeStruct((batch, *shape), jnp.int32)
    prompts = Prompts(rows(1), rows(), rows(), rows())
    return jax.eval_shape(prefill, inputs, prompts)

  def take(inputs: Inputs, state: DecodeState, slot) -> DecodeState:
    row = functools.partial(_take_row, slot=slot)
    state = jax.tree.map(row, state, shapes_of(inputs, 1))
    return with_axes(state, rules.constrain)

  def spread(inputs: Inputs, row: DecodeState) -> DecodeState:
    repeat = lambda leaf, whole: jnp.broadcast_to(leaf, whole.shape)
    state = jax.tree.map(repeat, row, shapes_of(inputs, batch))
    state = state.replace(done=jnp.ones((batch,), bool))
    return with_axes(state, rules.constrain)

  def burst(inputs: Inputs, state: DecodeState, rounds, max_done, is_idle_b):
    state = state.replace(done=state.done | is_idle_b)
    return decoder.decode(inputs, state, rounds, max_done)

  return SlotPrograms(
    prefill=jax.jit(prefill),
    take=jax.jit(take),
    resume=jax.jit(
      functools.partial(decoder.resume, logprob_options=logprob_options),
      donate_argnums=1,
      static_argnums=4,
    ),
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


def _take_row(rows, row, slot):
  """Returns a copy of a row, [1, ..], or of an array without rows."""
  if rows.shape == row.shape:
    return jnp.copy(rows)  # else the result would be the array itself
  mesh = rules.mesh_in_use()
  if mesh is None or mesh.shape[rules.DATA] == 1:
    return jax.lax.dynamic_slice_in_dim(rows, slot, 1, axis=0)
  if jnp.issubdtype(rows.dtype, jax.dtypes.prng_key):
    return rows[:1]  # every new row gets new keys
  # XLA would gather all rows, see `_replace_row`.
  row_b = np.arange(rows.shape[0], dtype=np.int32)
  is_slot_b = (row_b == slot).reshape((-1,) + (1,) * (rows.ndim - 1))
  taken = jnp.where(is_slot_b, rows, jnp.zeros_like(rows))
  return taken.sum(axis=0, keepdims=True, dtype=rows.dtype)


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
    prefill_chunk: int | None,
    reuse_prefixes: bool,
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
    capacity = arguments.capacity(max_length + cache_slots(drafter), model.mesh)
    self._programs = slot_programs_for(
      decoder,
      slots,
      capacity,
      logprob_options,
      (structure, tuple(map(jax.typeof, leaves)), model.mesh),
    )
    self._capacity = capacity
    self._chunk = self._run(decoder.chunk_size, 1, capacity)
    self._state: DecodeState | None = None
    self._needs_distinct_bits = decoder.needs_distinct_bits(drafter)
    self._num_inserted = 0
    self._overlap = drafter.overlap if reuse_prefixes else None
    self._texts = HeldTexts(slots)

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

  def prefix_of(self, prompts: Prompts) -> Prefix | None:
    """Returns the prefix from which `resume` can continue a prompt.

    None if the passes over the rest would read as many tokens as those over the
    whole, or if the drafter cannot continue.
    """
    if self._overlap is None:
      return None
    length = int(prompts.length[0])
    prefix = self._texts.longest(prompts.tokens[0, : length - 1])
    start = prefix.length - self._overlap
    if start <= 0:
      return None
    size = min(prompts.tokens.shape[1], self._chunk)
    num_read = -(-length // size) * size
    size = self._size(length - start)
    num_read_again = -(-(length - start - 1) // (size - 1)) * size
    return prefix._replace(length=start) if num_read_again < num_read else None

  def resume(self, prompts: Prompts, prefix: Prefix) -> DecodeState:
    """Returns the state of `prefill`, from a prefix of `prefix_of`."""
    slot, start = prefix
    size = self._size(int(prompts.length[0]) - start)
    inputs = self._to_resume(prompts, slot, start)
    self._compile_resume(inputs, [size])
    return self._run(self._programs.resume, self._inputs, *inputs, size)

  def choose_slot(self, prompts: Prompts, idle: Sequence[int]) -> int:
    """Returns the slot, one of `idle`, whose text a prompt replaces."""
    prompt = prompts.tokens[0, : prompts.length[0]]
    # The narrowest pass reads this number of tokens in any case.
    return self._texts.replaceable(idle, prompt, num_lost=self._width(1))

  def insert(
    self,
    row: DecodeState,
    slot: int,
    seed: int,
    sampling: SamplingParams,
    stop_tokens: np.ndarray,
  ) -> None:
    """Puts a prompt into a slot, in place of an earlier one.

    `row` is the state from `prefill` or `resume`, which is not consumed.
    Sampling values are [], stop tokens int32 [K].
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
    self._texts.hold(slot, ())  # until a round shows that no entry is NaN

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
    host = meshes.fetch(self._state.visible)
    for slot in np.flatnonzero(~np.asarray(is_idle)):
      # After a NaN, entries may have one too.
      length = 0 if host.broken[slot] else host.length[slot]
      self._texts.hold(slot, host.tokens[slot, :length].copy())
    return host

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
    prompts = [
      Prompts(np.zeros((1, width), np.int32), one, one, 0 * one)
      for width in sorted(widths)
    ]
    self._compile(prompts)
    # A prompt of the widest size in one pass is not resumed in one.
    sizes = {self._size(n) for n in range(1, self.max_length)} - {max(widths)}
    if self._overlap is not None and sizes:
      row = self._run(self._programs.prefill, self._inputs, prompts[0])
      self._insert_idle(row, 0)
      inputs = self._to_resume(prompts[0], 0, 1)
      self._compile_resume(inputs, sorted(sizes))
      row = self._run(self._programs.resume, self._inputs, *inputs, min(sizes))
      self._insert_idle(row, 0)
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

  def _compile_resume(self, inputs, sizes: Iterable[int]) -> None:
    """Compiles `resume` for new sizes, with a progress bar."""
    compiled, resume = self._programs.sizes, self._programs.resume
    cold = [size for size in sizes if size not in compiled]
    for size in progress.bar('compiling', cold, unit='size'):
      self._run(resume.lower, self._inputs, *inputs, size).compile()
      compiled.add(size)

  def _insert_idle(self, row: DecodeState, slot: int) -> None:
    sampling = jax.tree.map(lambda x: x[0], SamplingParams().broadcast(1))
    stop_tokens = self._inputs.stop_tokens[slot]
    self.insert(row, slot, 0, sampling, stop_tokens)

  def _compile_others(self, prompts: Prompts) -> None:
    """Compiles the programs that follow a prefill, and empties the slots."""
    row = self._run(self._programs.prefill, self._inputs, prompts)
    # On a mesh the output of one program may be sharded differently from that
    # of another, which is another type to the next program.
    for slot in (0, 0, self.slots - 1):
      self._insert_idle(row, slot)
      self._take(slot)
      self.burst(1, self.slots - 1, [True] * self.slots)
      self._take(slot)
      self._insert_idle(row, slot)
      self._take(slot)
    self.drop()

  def drop(self) -> None:
    """Empties the slots."""
    self._state = None
    self._num_inserted = 0
    self._texts = HeldTexts(self.slots)

  def _take(self, slot: int) -> DecodeState:
    return self._run(
      self._programs.take, self._inputs, self._state, np.int32(slot)
    )

  def _to_resume(self, prompts: Prompts, slot: int, start: int):
    """Returns the inputs of `resume`, of the same shapes for all prompts."""
    width = prompts.tokens.shape[1]
    tokens = np.pad(prompts.tokens, ((0, 0), (0, self._capacity - width)))
    start_b = np.asarray([start], np.int32)
    return self._take(slot), prompts.replace(tokens=tokens), start_b

  def _size(self, length: int) -> int:
    """Returns the tokens in a pass over the rest of a prompt."""
    return max(2, min(self._width(length), self._chunk))

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
