"""A call of `generate`, checked, as the compiled programs take it."""

import dataclasses
import functools
import time
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from specsamp.decoding import arguments, programs
from specsamp.decoding.arguments import Rows
from specsamp.decoding.loop import Decoder, Inputs
from specsamp.decoding.state import DecodeState, Prompts
from specsamp.drafting.drafter import Drafter
from specsamp.language_model import LanguageModel
from specsamp.models import float16
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes
from specsamp.utils import progress
from specsamp.verification.verifier import Verifier

_ALL = 2**31 - 1  # rounds


@dataclasses.dataclass(frozen=True)
class Request:
  """The checked arguments of one call, as the compiled programs take them.

  Arrays have a row for each prompt, and then as many that are done as fill the
  programs' batch.

  Attributes:
    model: the target.
    decoder: what the programs are compiled for.
    inputs: what they read in every round.
    prompts: what they begin with.
    capacity: slots of the caches.
    batch: prompts.
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
    sampling: SamplingParams | None = None,
    max_new_tokens: int | Sequence[int] = 128,
    seed: int | Sequence[int] = 0,
    stop_tokens: Sequence[int] | None = None,
    tree_attention: bool = True,
    max_length: int | None = None,
  ) -> 'Request':
    """Takes the arguments of `generate`, and raises what that does.

    Args:
      max_length: tokens of a prompt with its new ones that there is room for.
        Every pass reads as many slots of a cache, as in an `Engine` of this
        `max_length`. If left out, the next power of two, but not beyond the
        target's positions.

    Raises:
      UserError: also a `max_length` below the longest text's.
    """
    rows = Rows.make(
      model, prompts, sampling, max_new_tokens, seed, stop_tokens
    )
    batch = len(rows.prompts.length)
    decoder, drafter = arguments.parts(
      model, drafter, verifier, batch, tree_attention
    )
    longest = max(rows.prompts.limit)
    if max_length is None:
      _, max_length = arguments.slots(model, longest, longest)
    arguments.check_int(
      'max_length', max_length, longest, model.config.max_length
    )
    # The bucket of the prompts may be wider than a cache of `max_length`.
    narrow = rows.prompts._replace(tokens=rows.prompts.tokens[:, :max_length])
    rows = rows._replace(prompts=narrow)
    # Rows that are done when they begin fill a batch.
    rows = rows.fill(arguments.num_rows(batch, model.mesh) - batch)
    return cls(
      model=model,
      decoder=decoder,
      inputs=Inputs(model.params, drafter, rows.sampling, rows.stop_tokens),
      prompts=rows.prompts,
      # The last round may start just before the limit.
      capacity=arguments.capacity(max_length + drafter.room, model.mesh),
      batch=batch,
    )

  @functools.cached_property
  def program_key(self):
    """Equal for requests that run the same programs."""
    # What else fixes what is compiled, of all that is not the same anyway.
    others = (self.prompts.tokens, self.inputs.drafter, self.inputs.stop_tokens)
    leaves, structure = jax.tree.flatten(others)
    types = tuple(map(jax.typeof, leaves))  # a drafter may hold a plain number
    return self.decoder, self.capacity, (structure, types, self.model.mesh)

  @functools.cached_property
  def programs(self) -> programs.Programs:
    return programs.of(*self.program_key)

  @property
  def is_compiled(self) -> bool:
    if 'programs' in vars(self):  # made already, and perhaps evicted since
      return self.programs.is_compiled
    return programs.are_compiled(*self.program_key)

  def build(self) -> None:
    """Compiles the programs without running them, unless they are compiled."""
    if self.is_compiled:
      return
    prefill, decode = self.programs.prefill, self.programs.decode
    with meshes.use(self.model.mesh):
      lowered = prefill.lower(self.inputs, self.prompts)
      shardings = lowered.compile().output_shardings
      state = prefill.eval_shape(self.inputs, self.prompts)
      if self.model.mesh is not None:
        # jax finds the program again only for a state that is sharded alike.
        place = lambda array, sharding: array.update(sharding=sharding)
        state = jax.tree.map(place, state, shardings)
      decode.lower(self.inputs, state, np.int32(_ALL)).compile()
    self.programs.is_compiled = True

  def compile(self) -> None:
    """Compiles the programs and runs a round of each part of the drafter.

    On CPUs a part's first run takes several times as long as the next ones.
    """
    self.build()
    first, *others = map(self.with_drafter, self.inputs.drafter.parts())
    jax.block_until_ready(first.decode(first.prefill(), rounds=1))
    for other in others:
      # After a round of the first, so that what that left unread is read.
      state = first.decode(first.prefill(), rounds=1)
      jax.block_until_ready(other.decode(state, rounds=1))

  def with_drafter(self, drafter: Drafter) -> 'Request':
    """The request with other values of its drafter: the same programs."""
    inputs = self.inputs.replace(drafter=drafter)
    return dataclasses.replace(self, inputs=inputs)

  def prefill(self) -> DecodeState:
    """The state before the first round."""
    with meshes.use(self.model.mesh):
      return self.programs.prefill(self.inputs, self.prompts)

  def decode(self, state: DecodeState, rounds: int = _ALL) -> DecodeState:
    """After so many rounds, or all that it takes; consumes `state`.

    How many is a value of the one program: another compiles nothing.
    """
    with meshes.use(self.model.mesh):
      return self.programs.decode(self.inputs, state, np.int32(rounds))

  def fetch(self, state: DecodeState) -> DecodeState:
    """What there is to see of the prompts' rows, on the host.

    Raises:
      FloatingPointError: the target's logits held a NaN.
    """
    seen = meshes.fetch(
      state.replace(cache=None, drafter=None, keys=None, limit=None)
    )
    seen = jax.tree.map(lambda rows: rows[: self.batch], seen)
    rows = np.flatnonzero(seen.broken).tolist()
    if rows:
      raise FloatingPointError(
        f'the target gave NaN logits in rows {rows}'
        f'{float16.overflow_hint(self.model.config.dtype)}'
      )
    return seen

  def text(self, prompt: list[int], tokens: list[int]) -> str:
    return text_of(self.model, prompt, tokens, self.inputs.stop_tokens)


def text_of(
  model: LanguageModel, prompt: list[int], tokens: list[int], stop_tokens
) -> str:
  """What output tokens add to the prompt's text, without the stop token."""
  if tokens and tokens[-1] in stop_tokens:
    tokens = tokens[:-1]
  return model.tokenizer.decode(tokens, prompt)


def compile_programs(
  requests: Iterable[Request], stays: bool = True, runs: bool = True
) -> float:
  """Compiles the programs that are not compiled yet, with a progress bar.

  Args:
    requests: some of them may run the same programs.
    stays: see `progress.bar`.
    runs: also runs a round, see `Request.compile`.

  Returns:
    The seconds that it took, 0 if all programs were compiled.
  """
  cold = {
    request.program_key: request
    for request in requests
    if not request.is_compiled
  }
  if not cold:
    return 0.0
  began = time.perf_counter()
  for request in progress.bar(
    'compiling', cold.values(), unit='program', stays=stays
  ):
    request.compile() if runs else request.build()
  return time.perf_counter() - began
