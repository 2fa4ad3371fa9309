"""Rollouts for a trainer: an engine in the shape of tunix's sampler.

`Sampler` writes down what a trainer calls: the names and arguments of
`tunix.generate`, of which nothing is imported. `EngineSampler` has it, with a
draft, and with weights that swap without compiling.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from specsamp.decoding.completions import Completion
from specsamp.decoding.engine import Engine
from specsamp.decoding.state import block_efficiency
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer
from specsamp.sampling.transforms import SamplingParams


@dataclasses.dataclass(frozen=True)
class SamplerOutput:
  """Rollouts, those of one prompt in a row.

  Attributes:
    text: of each.
    tokens: int32, its tokens, a stop token included, for it was drawn; an array
      [B, ..] with `pad_output`, filled on the right.
    padded_prompt_tokens: int32 [B, P], filled on the left.
    prompt_lengths: int32 [B], tokens of the prompts.
    logprobs: float32, of the new tokens under what they were drawn from, after
      temperature and cuts; None if they were not asked for.
    logits: none, ever; there for those who read the field.
    completions: all else that there is, `logprobs.raw` and counts of it.
  """

  text: list[str]
  tokens: list[np.ndarray] | np.ndarray
  padded_prompt_tokens: np.ndarray
  prompt_lengths: np.ndarray
  logprobs: list[np.ndarray] | None
  logits: Sequence[Any]
  completions: list[Completion]

  @property
  def block_efficiency(self) -> float:
    """τ of all completions together, see `state.block_efficiency`."""
    return block_efficiency(
      sum(each.num_accepted for each in self.completions),
      sum(int(each.stats.rounds) for each in self.completions),
    )


@runtime_checkable
class Sampler(Protocol):
  """What a trainer calls, see `EngineSampler`."""

  @property
  def transformer(self) -> Any: ...

  @property
  def transformer_state(self) -> Any: ...

  @transformer_state.setter
  def transformer_state(self, state: Any) -> None: ...

  def tokenize(self, input_string: str) -> Sequence[int]: ...

  def update_params(
    self, updated_weights: Any, filter_types: tuple[Any, ...] | None = None
  ) -> None: ...

  def __call__(
    self, input_strings: str | Sequence[str], max_generation_steps: int,
    max_prompt_length: int | None = None, echo: bool = False,
    return_logits: bool = False, return_logprobs: bool = False,
    eos_tokens: Sequence[int] | None = None, temperature: float = 0.0,
    top_p: float | None = None, top_k: int | None = None,
    beam_size: int | None = None, seed: int | None = None,
    multi_sampling: int = 1, pad_output: bool = False,
  ) -> SamplerOutput: ...  # fmt: skip


class EngineSampler:
  """A `Sampler` that drafts.

  Attributes:
    engine: what decodes.
  """

  def __init__(
    self,
    model: LanguageModel,
    cache_size: int | None = None,
    *,
    pad_id: int = 0,
    stale: bool = False,
    **options,
  ):
    """Compiles nothing yet.

    Args:
      model: the policy.
      cache_size: tokens of a prompt with its new ones, `Engine.max_length`.
      pad_id: what fills tokens.
      stale: a drafter that was trained for other weights goes on when the
        policy moves: texts stay the policy's, fewer drafted tokens are
        accepted. Without it such an update is refused.
      **options: others of `Engine`: slots, drafter, verifier, rounds.

    Raises:
      UserError: what `Engine` raises.
    """
    self.engine = Engine(model, max_length=cache_size, logprobs=0, **options)
    self._pad_id = pad_id
    self._stale = stale

  @property
  def transformer(self) -> Transformer:
    return self.engine.model.transformer

  @property
  def transformer_state(self) -> Any:
    """The policy's parameters."""
    return self.engine.model.params

  @transformer_state.setter
  def transformer_state(self, state: Any) -> None:
    self.update_params(state)

  def tokenize(self, input_string: str) -> list[int]:
    return self.engine.model.tokenizer.encode(input_string)

  def update_params(
    self,
    updated_weights: Any,
    filter_types: tuple[Any, ...] | None = None,
    drafter: Any = None,
  ) -> None:
    """Goes on with other weights of the policy; compiles nothing.

    Args:
      updated_weights: all of them, in the tree of `transformer_state`.
      filter_types: None: there are no parts to choose from.
      drafter: the drafter's own, made for them; None leaves those it has.

    Raises:
      UserError: what `Engine.update_params` raises, or a filter.
    """
    _refuse(filter_types=filter_types)
    self.engine.update_params(updated_weights, drafter, stale=self._stale)

  def __call__(
    self, input_strings, max_generation_steps, max_prompt_length=None,
    echo=False, return_logits=False, return_logprobs=False, eos_tokens=None,
    temperature=0.0, top_p=None, top_k=None, beam_size=None, seed=None,
    multi_sampling=1, pad_output=False,
  ) -> SamplerOutput:  # fmt: skip
    """Samples continuations.

    Args:
      input_strings: prompts, or token ids of each.
      max_generation_steps: new tokens of each, at most.
      max_prompt_length: what prompts are filled to, and the next power of two
        where one has more; none is cut off.
      echo: whether texts and tokens begin with the prompt.
      return_logits: False, for there are none; `return_logprobs` has its own.
      return_logprobs: whether to return them.
      eos_tokens: stop tokens; the tokenizer's if left out.
      temperature: 0 is greedy.
      top_p: nucleus; None is all, at whatever temperature.
      top_k: the most probable; None or -1 is all.
      beam_size: None: this samples.
      seed: rollout j of prompt i draws from `seed + multi_sampling * i + j`;
        None is 0.
      multi_sampling: rollouts of each prompt, on one prefill.
      pad_output: whether tokens are one array, filled to the most there can be.

    Raises:
      UserError: what `Engine.generate` raises, or something that is not here.
      FloatingPointError: the policy's logits held a NaN.
    """
    _refuse(return_logits=return_logits or None, beam_size=beam_size)
    if isinstance(input_strings, str):
      input_strings = [input_strings]
    found = self.engine.generate(
      input_strings,
      sampling=SamplingParams(
        temperature,
        top_k=0 if top_k in (None, -1) else top_k,
        top_p=1.0 if top_p is None else top_p,
      ),
      max_new_tokens=max_generation_steps,
      seed=0 if seed is None else seed,
      stop_tokens=eos_tokens,
      n=multi_sampling,
    )
    lengths = [len(each.prompt) for each in found]
    width = max_prompt_length or 0
    if width < max(lengths):
      width = 1 << (max(lengths) - 1).bit_length()
    tokens = [
      np.asarray(each.prompt * echo + each.tokens, np.int32) for each in found
    ]
    fill = lambda row, *sides: np.pad(row, sides, constant_values=self._pad_id)
    if pad_output:
      most = max_generation_steps + width * echo
      tokens = np.stack([fill(row, 0, most - len(row)) for row in tokens])
    decode = self.engine.model.tokenizer.decode
    logprobs = [each.logprobs.processed for each in found]
    return SamplerOutput(
      text=[decode(each.prompt) * echo + each.text for each in found],
      tokens=tokens,
      padded_prompt_tokens=np.stack(
        [
          fill(np.asarray(each.prompt, np.int32), width - length, 0)
          for each, length in zip(found, lengths, strict=True)
        ]
      ),
      prompt_lengths=np.asarray(lengths, np.int32),
      logprobs=logprobs if return_logprobs else None,
      logits=(),
      completions=found,
    )


def _refuse(**values: Any) -> None:
  for name, value in values.items():
    if value is not None:
      raise UserError(f'{name}: got {value!r}, expected none: it is not here')
