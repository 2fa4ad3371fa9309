"""Rollouts for a trainer: an engine with the interface of tunix's sampler.

Names and arguments are those of `tunix.generate`, without a dependency on it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from specsamp import verification
from specsamp.decoding.completions import Completion
from specsamp.decoding.engine import Engine
from specsamp.decoding.state import block_efficiency
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer
from specsamp.sampling.transforms import SamplingParams


@dataclasses.dataclass(frozen=True)
class SamplerOutput:
  """Rollouts; those of one prompt are adjacent.

  Attributes:
    text: text of each rollout.
    tokens: int32 tokens of each rollout, a stop token included; with
      `pad_output` one array [B, T], padded on the right.
    padded_prompt_tokens: int32 [B, P], padded on the left.
    prompt_lengths: int32 [B], tokens of the prompts.
    logprobs: float32 log-probabilities of the new tokens after temperature and
      truncation; None if they were not requested.
    logits: always empty.
    completions: the engine's completions, with `logprobs.raw` and counts.
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
    """Block efficiency τ of all completions, see `state.block_efficiency`."""
    return block_efficiency(
      sum(completion.num_accepted for completion in self.completions),
      sum(int(completion.stats.rounds) for completion in self.completions),
    )


class EngineSampler:
  """Sampler that draws rollouts with its `engine`, with or without a draft."""

  def __init__(
    self,
    model: LanguageModel,
    cache_size: int | None = None,
    *,
    pad_id: int = 0,
    stale: bool = False,
    **options,
  ):
    """Makes the engine; compiles nothing yet.

    Args:
      model: the policy.
      cache_size: `max_length` of the engine, for a prompt and its rollout.
      pad_id: token for padding.
      stale: True to keep drafting after an update with a drafter that was
        trained for other weights; otherwise such an update is an error.
      **options: other options of `Engine`: slots, drafter, verifier, rounds.

    Raises:
      UserError: an option is invalid, or the verifier is not lossless, so that
        rollouts would not be samples of the policy.
    """
    self.engine = Engine(model, max_length=cache_size, logprobs=0, **options)
    verification.check_lossless('rollouts', options.get('verifier'))
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
    """Replaces the policy's weights: see `Engine.update_params`.

    `filter_types` is not supported.
    """
    _check_none(filter_types=filter_types)
    self.engine.update_params(updated_weights, drafter, stale=self._stale)

  def __call__(
    self, input_strings, max_generation_steps, max_prompt_length=None,
    echo=False, return_logits=False, return_logprobs=False, eos_tokens=None,
    temperature=0.0, top_p=None, top_k=None, beam_size=None, seed=None,
    multi_sampling=1, pad_output=False,
  ) -> SamplerOutput:  # fmt: skip
    """Draws rollouts.

    Args:
      input_strings: a prompt, or a list of texts or of token ids.
      max_generation_steps: upper bound on the new tokens of a rollout.
      max_prompt_length: width to which prompts are padded; the next power of
        two if a prompt is longer, or for None. Prompts are never truncated.
      echo: if True, text and tokens start with the prompt.
      return_logits, beam_size: not supported.
      return_logprobs: if True, log-probabilities are returned.
      eos_tokens: stop tokens; None for the tokenizer's.
      temperature: 0 is greedy.
      top_p, top_k: see `SamplingParams`; None or -1 for the whole vocabulary.
      seed: rollout j of prompt i draws from `seed + multi_sampling * i + j`;
        None is 0.
      multi_sampling: rollouts of each prompt, which share a prefill.
      pad_output: if True, tokens are one array, padded to the longest possible
        rollout.

    Raises:
      UserError: see `Engine.generate`, or an argument is not supported.
      FloatingPointError: the policy's logits contained a NaN.
    """
    _check_none(return_logits=return_logits or None, beam_size=beam_size)
    if isinstance(input_strings, str):
      input_strings = [input_strings]
    completions = self.engine.generate(
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
    prompts = [np.asarray(c.prompt, np.int32) for c in completions]
    lengths = np.asarray(list(map(len, prompts)), np.int32)
    width = max_prompt_length or 0
    if width < lengths.max():
      width = 1 << (int(lengths.max()) - 1).bit_length()
    pad = lambda row, *sides: np.pad(row, sides, constant_values=self._pad_id)
    tokens = [
      np.asarray(c.prompt * echo + c.tokens, np.int32) for c in completions
    ]
    if pad_output:
      longest = max_generation_steps + width * echo
      tokens = np.stack([pad(row, 0, longest - len(row)) for row in tokens])
    decode = self.engine.model.tokenizer.decode
    logprobs = [c.logprobs.processed for c in completions]
    return SamplerOutput(
      text=[decode(c.prompt) * echo + c.text for c in completions],
      tokens=tokens,
      padded_prompt_tokens=np.stack(
        [pad(prompt, width - len(prompt), 0) for prompt in prompts]
      ),
      prompt_lengths=lengths,
      logprobs=logprobs if return_logprobs else None,
      logits=(),
      completions=completions,
    )


def _check_none(**values: Any) -> None:
  for name, value in values.items():
    if value is not None:
      raise UserError(f'{name}: got {value!r}, which is not supported')
