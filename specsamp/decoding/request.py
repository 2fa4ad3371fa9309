"""Checked arguments of `generate`, in the form that compiled programs take."""

import dataclasses
import functools
import time
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from specsamp.decoding import arguments, programs
from specsamp.decoding.loop import Decoder, Inputs
from specsamp.decoding.state import DecodeState, Prompts
from specsamp.drafting.adaptive import CostAwareDrafter
from specsamp.drafting.drafter import Drafter, cache_slots
from specsamp.language_model import LanguageModel
from specsamp.models import float16
from specsamp.sharding import mesh as meshes
from specsamp.utils import progress
from specsamp.verification.verifier import Verifier

_UNBOUNDED = 2**31 - 1  # rounds


@dataclasses.dataclass(frozen=True)
class Request:
  """Checked arguments of one call.

  Arrays have a row for each prompt, then rows that are done, up to the batch
  size of the programs.

  Attributes:
    capacity: slots of the caches.
    batch: number of prompts.
  """

  model: LanguageModel
  decoder: Decoder
  inputs: Inputs
  prompts: Prompts
  capacity: int
  batch: int

  @classmethod
  def make(
    cls,
    model: LanguageModel,
    prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
    drafter: Drafter | None = None,
    verifier: str | Verifier | None = None,
    *,
    tree_attention: bool = True,
    prefill_chunk: int | None = None,
    max_length: int | None = None,
    **row_options,
  ) -> 'Request':
    """Checks the arguments of `specsamp.generate`, and `max_length`.

    `max_length` bounds the tokens of a prompt with its new ones, as in an
    `Engine`, and every pass reads this number of cache slots. None is the next
    power of two, within the target's positions.

    Raises:
      UserError: see `generate`, or a prompt with its new tokens is longer.
    """
    rows = arguments.check_rows(model, prompts, **row_options)
    batch = len(rows.prompts.length)
    decoder, drafter = arguments.make_decoder(
      model, drafter, verifier, batch, tree_attention, prefill_chunk
    )
    longest = max(rows.prompts.limit)
    if max_length is None:
      max_length = arguments.slots(model, longest)
    arguments.check_int(
      'max_length', max_length, longest, model.config.max_length
    )
    # The bucket of the prompts may be wider than a cache of `max_length`.
    tokens = rows.prompts.tokens[:, :max_length]
    rows = rows.replace(prompts=rows.prompts.replace(tokens=tokens))
    rows = rows.with_done(arguments.num_rows(batch, model.mesh) - batch)
    # The last round may begin right before the limit.
    num_slots = max_length + cache_slots(drafter)
    return cls(
      model=model,
      decoder=decoder,
      inputs=Inputs(model.params, drafter, rows.sampling, rows.stop_tokens),
      prompts=rows.prompts,
      capacity=arguments.capacity(num_slots, model.mesh),
      batch=batch,
    )

  @functools.cached_property
  def program_key(self):
    """Key that is equal for requests which run the same programs.

    Prompts of another width have another `prefill` of the same key.
    """
    others = (self.prompts.length, self.inputs.drafter, self.inputs.stop_tokens)
    leaves, structure = jax.tree.flatten(others)
    types = tuple(map(jax.typeof, leaves))  # a drafter may hold a plain number
    return self.decoder, self.capacity, (structure, types, self.model.mesh)

  @property
  def programs(self) -> programs.Programs:
    # Not kept here, so that evicted programs free their memory.
    return programs.programs_for(*self.program_key)

  @property
  def width(self) -> int:
    """Tokens of a row in the array of prompts."""
    return self.prompts.tokens.shape[1]

  @property
  def is_compiled(self) -> bool:
    return self.width in self.programs.widths

  def build(self) -> None:
    """Compiles the programs without running them."""
    if self.is_compiled:
      return
    made = self.programs
    programs.make_room()
    prefill, decode = made.prefill, made.decode
    with meshes.use(self.model.mesh):
      lowered = prefill.lower(self.inputs, self.prompts)
      shardings = lowered.compile().output_shardings
      state = prefill.eval_shape(self.inputs, self.prompts)
      if self.model.mesh is not None:
        # jax finds the program again only if the state is sharded alike.
        place = lambda array, sharding: array.update(sharding=sharding)
        state = jax.tree.map(place, state, shardings)
      decode.lower(self.inputs, state, np.int32(_UNBOUNDED)).compile()
    made.widths.add(self.width)

  def compile(self) -> None:
    """Compiles the programs and runs a round at each depth of the drafter.

    On CPUs the first run of a part takes several times as long as later ones.
    The prompts are cut, because one chunk of them runs all parts.
    """
    self.build()
    short = self.prompts.replace(length=self.prompts.length.clip(max=2))
    request = dataclasses.replace(self, prompts=short)
    drafter = self.inputs.drafter
    drafters = [drafter]
    if isinstance(drafter, CostAwareDrafter):
      drafters = drafter.at_each_choice()
    first, *others = map(request.with_drafter, drafters)
    jax.block_until_ready(first.decode(first.prefill(), rounds=1))
    for other in others:
      # After a round of the least depth, so that the drafter catches up.
      state = first.decode(first.prefill(), rounds=1)
      jax.block_until_ready(other.decode(state, rounds=1))

  def with_drafter(self, drafter: Drafter) -> 'Request':
    """Returns the request with other drafter values; the programs stay."""
    return dataclasses.replace(
      self, inputs=self.inputs.replace(drafter=drafter)
    )

  def prefill(self) -> DecodeState:
    """Returns the state before the first round."""
    with meshes.use(self.model.mesh):
      return self.programs.prefill(self.inputs, self.prompts)

  def decode(self, state: DecodeState, rounds: int = _UNBOUNDED) -> DecodeState:
    """Runs rounds until all rows are done; consumes `state`.

    A new value of `rounds`, an upper bound, compiles nothing.
    """
    with meshes.use(self.model.mesh):
      return self.programs.decode(self.inputs, state, np.int32(rounds))

  def fetch(self, state: DecodeState) -> DecodeState:
    """Returns a host copy of the prompts' rows, without caches."""
    host = meshes.fetch(state.visible)
    host = jax.tree.map(lambda rows: rows[: self.batch], host)
    check_broken(host.broken, self.model)
    return host


def check_broken(is_broken_b, model: LanguageModel) -> None:
  """Raises `FloatingPointError` if logits of a row had a NaN."""
  rows = np.flatnonzero(is_broken_b).tolist()
  if rows:
    raise FloatingPointError(
      f'the target gave NaN logits in rows {rows}'
      f'{float16.overflow_hint(model.config.dtype)}'
    )


def completion_text(
  model: LanguageModel, prompt: list[int], tokens: list[int], stop_tokens
) -> str:
  """Returns the text that output tokens add to a prompt."""
  if tokens and tokens[-1] in stop_tokens:
    tokens = tokens[:-1]
  return model.tokenizer.decode(tokens, prompt)


def compile_programs(
  requests: Iterable[Request], stays: bool = True, runs: bool = True
) -> float:
  """Compiles the programs that are not compiled yet, with a progress bar.

  Also runs a round of each unless `runs` is False. Returns the seconds.
  """
  cold = {(r.program_key, r.width): r for r in requests if not r.is_compiled}
  began = time.perf_counter()
  for request in progress.bar(
    'compiling', cold.values(), unit='program', stays=stays
  ):
    request.compile() if runs else request.build()
  return time.perf_counter() - began if cold else 0.0
