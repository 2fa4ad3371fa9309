"""A compiled batch with slots that prompts are put into, between rounds."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding import arguments, engine_programs
from specsamp.decoding.arguments import Rows
from specsamp.decoding.logprobs import Asked
from specsamp.decoding.loop import Inputs
from specsamp.decoding.state import DecodeState, Prompts
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.utils import progress
from specsamp.verification.verifier import Verifier

_OTHERS = 3  # programs of an engine besides `prefill`


class Batch:
  """The arrays of an engine, on the host and on the device.

  Attributes:
    model: the target.
    slots: B, rows.
    max_length: of a prompt with its new tokens.
    is_stale: whether the drafter was trained for other weights of the target.
  """

  def __init__(
    self,
    model: LanguageModel,
    drafter: Drafter | None,
    verifier: str | Verifier,
    slots: int,
    max_length: int,
    asked: Asked,
  ):
    # New arrays will be those of a device, and not of whichever: to a jit that
    # is another type.
    model = dataclasses.replace(model, params=_like(model.params, model.params))
    decoder, drafter = arguments.parts(model, drafter, verifier, 1)
    drafter = drafter.for_engine()
    self.model = model
    self.is_stale = False
    self.slots = slots
    self.max_length = max_length
    capacity = arguments.capacity(max_length + drafter.room, model.mesh)
    idle = Rows.make(model, [[0]] * slots, max_new_tokens=1)
    self._inputs = Inputs(
      params=model.params,
      drafter=_like(drafter, drafter),
      # On the host, where a request's values are written over those of a row.
      sampling=jax.tree.map(np.array, idle.sampling),
      stop_tokens=np.array(idle.stop_tokens),
    )
    read, structure = jax.tree.flatten(self._inputs.replace(params=None))
    types = tuple(map(jax.typeof, read))
    self._programs = engine_programs.of(
      decoder, slots, capacity, asked, (structure, types, model.mesh)
    )
    self._state: DecodeState | None = None
    self._sets_apart = decoder.sets_apart(drafter)
    self._count = 0  # of texts that have begun

  def rows(self, prompts, sampling, max_new_tokens, seed, stop_tokens) -> Rows:
    """See `Rows.make`, whose arguments these are.

    Raises:
      UserError: what that does, and what has no room here.
    """
    rows = Rows.make(
      self.model, prompts, sampling, max_new_tokens, seed, stop_tokens
    )
    most = max(rows.prompts.limit)
    if most > self.max_length:
      raise UserError(
        f'prompt: got {most} tokens with the new ones, expected at most '
        f'{self.max_length}, the max_length of the engine'
      )
    num_stops = self._inputs.stop_tokens.shape[1]
    if rows.stop_tokens.shape[1] != num_stops:
      raise UserError(
        f'stop_tokens: got more than {num_stops}, expected as many at most'
      )
    return rows

  def prompts(self, prompts: Prompts, i: int) -> Prompts:
    """One of many prompts, as wide as `prefill` is compiled for."""
    length = prompts.length[i]
    tokens = np.zeros((1, self._width(length)), np.int32)
    tokens[0, :length] = prompts.tokens[i, :length]
    rest = (rows[i : i + 1] for rows in prompts[1:])
    return Prompts(tokens, *rest)

  def prefill(self, prompts: Prompts) -> DecodeState:
    """Returns the state of one row after its prompt, for `put`.

    Before the first prompt of a width this compiles, and shows a progress bar.
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

  def put(
    self,
    row: DecodeState,
    slot: int,
    seed: int,
    sampling: SamplingParams,
    stop_tokens: np.ndarray,
  ) -> None:
    """Begins a text in a slot.

    Args:
      row: of `prefill`; it is not consumed.
      slot: from 0; what was there is written over.
      seed: of its draws.
      sampling: its values, each [].
      stop_tokens: int32 [K].
    """
    if self._state is None:
      self._state = self._run(self._programs.spread, self._inputs, row)
    own = slot, seed, self._count if self._sets_apart else 0
    self._state = self._run(
      self._programs.insert, self._state, row, *map(np.int32, own)
    )
    self._count += 1

    def write(rows, value):
      rows[slot] = value

    jax.tree.map(write, self._inputs.sampling, sampling)
    self._inputs.stop_tokens[slot] = stop_tokens

  def burst(
    self, rounds: int, most_done: int, is_idle: Sequence[bool]
  ) -> DecodeState:
    """Rounds of all slots; what there is to see of the state after them.

    Args:
      rounds: how many at most.
      most_done: they end as soon as more rows than these are done.
      is_idle: of each slot, whether what is there is to go no further.
    """
    self._state = self._run(
      self._programs.burst,
      self._inputs,
      self._state,
      np.int32(rounds),
      np.int32(most_done),
      np.asarray(is_idle),
    )
    return meshes.fetch(
      self._state.replace(cache=None, drafter=None, keys=None, limit=None)
    )

  def update_params(self, target: Any, drafter: Any, stale: bool) -> None:
    """See `Engine.update_params`; what is in the slots is lost."""
    model = self.model
    if target is not None:
      params = _like(model.params, target, 'target')
      model = dataclasses.replace(model, params=params)
      target = params
    old = self._inputs.drafter
    new = _like(old, old.with_params(drafter, target), 'drafter')
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
    """Compiles all that any prompt needs; what is in the slots is lost."""
    widths = {self._width(n) for n in range(1, self.max_length)}
    one = np.ones((1,), np.int32)
    with self._bar(widths) as bar:
      for width in sorted(widths - self._programs.widths):
        prompts = Prompts(np.zeros((1, width), np.int32), one, one, 0 * one)
        if self._programs.widths:  # wide prompts take long, so they don't run
          lower = self._programs.prefill.lower
          self._run(lower, self._inputs, prompts).compile()
          self._programs.widths.add(width)
          bar.update()
        else:
          self._prefill(prompts, bar)
    self.drop()

  def _compile_others(self, row: DecodeState) -> None:
    """Compiles what follows a prefill. The slots are empty, and stay so."""
    sampling = SamplingParams().broadcast(1)
    sampling = jax.tree.map(lambda x: x[0], sampling)
    # On a mesh what comes out of one program may lie otherwise than what comes
    # out of another, which is another type to the next.
    for slot in (0, 0, self.slots - 1):
      self.put(row, slot, 0, sampling, self._inputs.stop_tokens[slot])
      self.burst(1, self.slots - 1, [True] * self.slots)
      self.put(row, slot, 0, sampling, self._inputs.stop_tokens[slot])
    self.drop()

  def drop(self) -> None:
    """Lets go of what is in the slots."""
    self._state = None
    self._count = 0

  def _width(self, length: int) -> int:
    """Of a prompt's bucket, but no more than a text has."""
    width, _ = arguments.slots(self.model, length, length)
    return min(width, self.max_length)

  def _run(self, program, *inputs):
    with meshes.use(self.model.mesh):
      return program(*inputs)


def _like(old: Any, new: Any, what: str = '') -> Any:
  """New arrays, where the old ones lie.

  Raises:
    UserError: another tree than the old one's, or other shapes or dtypes.
  """
  names = lambda tree: [
    jax.tree_util.keystr(path)
    for path, _ in jax.tree_util.tree_leaves_with_path(tree)
  ]
  if jax.tree.structure(old) != jax.tree.structure(new):
    odd = sorted(set(names(old)) ^ set(names(new)))
    raise UserError(
      f'{what}: got parameters in another tree, expected that of the old ones; '
      f'only one has {", ".join(odd[:3]) or "its static fields"}'
    )
  leaves, tree = jax.tree.flatten(old)
  mesh = meshes.of(old)
  if mesh is None:
    places = [getattr(leaf, 'sharding', None) for leaf in leaves]
  else:
    places = jax.tree.leaves(rules.param_formats(old, mesh))

  def put(name, old, new, place):
    if not isinstance(old, jax.Array):
      return new
    got = jnp.shape(new), jnp.result_type(new)
    if got != (old.shape, old.dtype):
      raise UserError(
        f'{what}{name}: got {list(got[0])} {got[1]}, expected '
        f'{list(old.shape)} {old.dtype}'
      )
    return jax.device_put(new, place)

  placed = map(put, names(old), leaves, jax.tree.leaves(new), places)
  return jax.tree.unflatten(tree, placed)
