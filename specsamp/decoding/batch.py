"""Compiled batch with slots that prompts are put into between rounds."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding import arguments
from specsamp.decoding.arguments import HostRows
from specsamp.decoding.engine_programs import engine_programs_for
from specsamp.decoding.logprobs import LogprobOptions
from specsamp.decoding.loop import Inputs
from specsamp.decoding.state import DecodeState, Prompts
from specsamp.drafting.adaptive import AdaptiveDrafter
from specsamp.drafting.drafter import Drafter, cache_slots, with_params
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.utils import progress
from specsamp.verification.verifier import Verifier

_OTHERS = 3  # programs of an engine besides `prefill`


class SlotBatch:
  """Arrays of an engine, on the host and on the device.

  Attributes:
    model: the target.
    slots: B, rows.
    max_length: upper bound on the tokens of a prompt with its new ones.
    is_stale: True if the drafter was trained for other weights of the target.
  """

  def __init__(
    self,
    model: LanguageModel,
    drafter: Drafter | None,
    verifier: str | Verifier | None,
    slots: int,
    max_length: int,
    logprob_options: LogprobOptions,
  ):
    # Parameters of later updates are committed to a device, a different type
    # to a jit than uncommitted ones. So these are committed too.
    params = _place_like(model.params, model.params)
    model = dataclasses.replace(model, params=params)
    decoder, drafter = arguments.make_decoder(model, drafter, verifier, 1)
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
    self._programs = engine_programs_for(
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
    """Returns checked rows of requests; arguments: `arguments.check_rows`.

    Raises:
      UserError: see `check_rows`, or a row does not fit into this batch.
    """
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
    """Returns the state of one row after its prompt, for `insert`.

    The first prompt of a width compiles, with a progress bar.
    """
    with self._bar([prompts.tokens.shape[1]]) as bar:
      return self._prefill(prompts, bar)

  def _bar(self, widths: Iterable[int]):
    """Returns a bar over the programs that prompts of these widths lack."""
    compiled = self._programs.widths
    total = len(set(widths) - compiled) + (0 if compiled else _OTHERS)
    return progress.bar('compiling', total=total, unit='program')

  def _prefill(self, prompts: Prompts, bar) -> DecodeState:
    row = self._run(self._programs.prefill, self._inputs, prompts)
    compiled, width = self._programs.widths, prompts.tokens.shape[1]
    if width not in compiled:
      bar.update()
    if not compiled:
      self._compile_others(row)
      bar.update(_OTHERS)
    compiled.add(width)
    return row

  def insert(
    self,
    row: DecodeState,
    slot: int,
    seed: int,
    sampling: SamplingParams,
    stop_tokens: np.ndarray,
  ) -> None:
    """Puts a prompt into a slot, in place of an earlier one.

    Args:
      row: state from `prefill`, which is not consumed.
      slot: index of the slot.
      seed: seed of the row's draws.
      sampling: values of the row, each [].
      stop_tokens: int32 [K].
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

    Args:
      rounds: upper bound on the rounds.
      max_done: the burst ends once more rows than this are done.
      is_idle: True for each slot without a sample.
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
    widths = {self._width(n) for n in range(1, self.max_length)}
    one = np.ones((1,), np.int32)
    with self._bar(widths) as bar:
      for width in sorted(widths - self._programs.widths):
        prompts = Prompts(np.zeros((1, width), np.int32), one, one, 0 * one)
        if self._programs.widths:  # a run of a wide prompt takes long
          lower = self._programs.prefill.lower
          self._run(lower, self._inputs, prompts).compile()
          self._programs.widths.add(width)
          bar.update()
        else:
          self._prefill(prompts, bar)
    self.drop()

  def _compile_others(self, row: DecodeState) -> None:
    """Compiles the programs after a prefill, and empties the slots."""
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
    width, _ = arguments.slots(self.model, length, length)
    return min(width, self.max_length)

  def _run(self, program, *inputs):
    with meshes.use(self.model.mesh):
      return program(*inputs)


def _place_like(old: Any, new: Any, what: str = '') -> Any:
  """Returns new arrays, placed on the devices of the old ones.

  Args:
    old: a pytree.
    new: a pytree of the same structure, shapes and dtypes.
    what: name of the arrays in messages.

  Raises:
    UserError: the structure, a shape or a dtype differs.
  """

  def names(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path) for path, _ in leaves]

  if jax.tree.structure(old) != jax.tree.structure(new):
    different = sorted(set(names(old)) ^ set(names(new)))
    raise UserError(
      f'{what}: got parameters in another tree than the present ones; only one '
      f'has {", ".join(different[:3]) or "its static fields"}'
    )
  leaves, tree = jax.tree.flatten(old)
  mesh = meshes.of(old)
  if mesh is None:
    places = [getattr(leaf, 'sharding', None) for leaf in leaves]
  else:
    places = jax.tree.leaves(rules.param_formats(old, mesh))

  def place(name, old, new, sharding):
    if not isinstance(old, jax.Array):
      return new
    got = jnp.shape(new), jnp.result_type(new)
    if got != (old.shape, old.dtype):
      raise UserError(
        f'{what}{name}: got {list(got[0])} {got[1]}, expected '
        f'{list(old.shape)} {old.dtype}'
      )
    return jax.device_put(new, sharding)

  placed = map(place, names(old), leaves, jax.tree.leaves(new), places)
  return jax.tree.unflatten(tree, placed)
