"""A completion as it comes, to a terminal, accepted draft tokens marked."""

import sys
from collections.abc import Sequence
from typing import Any

from specsamp import verification
from specsamp.data.prompts import Prompt
from specsamp.decoding.generate import stream
from specsamp.decoding.request import Request, compile_programs
from specsamp.decoding.state import block_efficiency
from specsamp.drafting import Drafter
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

_GREEN, _PLAIN = '\x1b[32m', '\x1b[0m'


def show(
  target: LanguageModel,
  drafter: Drafter,
  prompt: Prompt,
  prompt_tokens: Sequence[int],
  *,
  verifier: str,
  sampling: SamplingParams,
  max_new_tokens: int,
  seed: int,
) -> dict[str, Any]:
  """Streams one completion to standard output.

  Args:
    target: the target.
    drafter: what drafts.
    prompt: its name and text, which are printed.
    prompt_tokens: its token ids.
    verifier: a name of `specsamp.verification.make`.
    sampling: of target and draft, scalars.
    max_new_tokens: in the completion.
    seed: of all draws.

  Returns:
    A line for metrics.jsonl.
  """
  arguments = dict(
    drafter=drafter,
    verifier=verifier,
    sampling=sampling,
    max_new_tokens=max_new_tokens,
    seed=seed,
  )
  request = Request.make(target, [prompt_tokens], **arguments)
  compile_programs([request], stays=False)
  color = sys.stdout.isatty()
  before, after = (_GREEN, _PLAIN) if color else ('«', '»')
  mark = 'green' if color else f'{before}between marks{after}'
  lossless = verification.make(verifier).lossless
  warning = '' if lossless else f'; {verifier} is NOT lossless'
  print(f'--- {prompt.name}; accepted draft tokens are {mark}{warning}')
  print(prompt.text, end='', flush=True)
  output, accepted, rounds = [], 0, 0
  decode = Incremental(target, prompt_tokens)
  for step in stream(target, [prompt_tokens], **arguments):
    tokens, kept = step.tokens[0], step.num_accepted[0]
    drafted = decode(tokens[:kept])
    if drafted:
      print(f'{before}{drafted}{after}', end='')
    print(decode(tokens[kept:]), end='', flush=True)
    output += tokens
    accepted += kept
    rounds += 1
  print(f'\n--- {_counted(output, rounds, accepted, target)}')
  return {
    'prompt': prompt.text,
    'text': target.tokenizer.decode(
      _without_stop(output, target), prompt_tokens
    ),
    'tokens': len(output),
    'rounds': rounds,
    'accepted': accepted,
    'block_efficiency': block_efficiency(accepted, rounds),
    'temperature': sampling.temperature,
    'verifier': verifier,
    'lossless': lossless,
    'draft_len': drafter.tree.depth,
    'seed': seed,
  }


def _counted(
  output: Sequence[int], rounds: int, accepted: int, target: LanguageModel
) -> str:
  """Returns the counts of a completion, those of hidden tokens included."""
  notes = [
    f'{len(output)} tokens in {rounds} passes of the target, '
    f'τ {block_efficiency(accepted, rounds):.2f}',
    f'accepted draft tokens: {accepted}',
  ]
  if output and output[-1] in target.tokenizer.stop_ids:
    notes.append('the last token is a stop token, not shown')
  # Every pass yields its accepted tokens and one of the target.
  cut = rounds + accepted - len(output)
  if cut:
    notes.append(f'tokens cut at the end: {cut}')
  return '; '.join(notes)


def _without_stop(tokens: Sequence[int], target: LanguageModel):
  return [t for t in tokens if t not in target.tokenizer.stop_ids]


class Incremental:
  """Text of tokens that come bit by bit; half a character waits."""

  def __init__(self, model: LanguageModel, prompt: Sequence[int]):
    self._model = model
    self._prompt = prompt
    self._tokens: list[int] = []
    self._text = ''

  def __call__(self, tokens: Sequence[int]) -> str:
    self._tokens += _without_stop(tokens, self._model)
    text = self._model.tokenizer.decode(self._tokens, self._prompt)
    text = text.rstrip('\N{REPLACEMENT CHARACTER}')
    new, self._text = text[len(self._text) :], text
    return new
