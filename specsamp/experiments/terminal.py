"""Streams completions to a terminal, with accepted draft tokens marked."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specsamp import verification
from specsamp.data.prompts import Prompt
from specsamp.decoding.generate import complete, rounds
from specsamp.decoding.request import Request, compile_programs
from specsamp.decoding.state import block_efficiency
from specsamp.drafting import Drafter
from specsamp.drafting.drafter import rounds_differ
from specsamp.evaluation import break_even, timing
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import distributed

_REPEATS = 2
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
  speedup: bool = False,
) -> dict[str, Any]:
  """Streams one completion to standard output.

  Args:
    target: the target.
    drafter: drafter of the completion.
    prompt: name and text of the prompt, which are printed.
    prompt_tokens: token ids of the prompt.
    verifier: a name of `specsamp.verification.make`.
    sampling: sampling of target and draft, scalars.
    max_new_tokens: upper bound on the new tokens.
    seed: seed of all draws.
    speedup: True also times decoding in one compiled loop, with the draft and
      without, and prints the ratio.

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
  marked = f'; accepted draft tokens are {mark}' if drafter.tree.depth else ''
  print(f'--- {prompt.name}{marked}{warning}')
  print(prompt.text, end='', flush=True)
  output, counts = _print_rounds(
    request, Incremental(target, prompt_tokens), before, after
  )
  print(f'\n--- {_counted(output, counts, target, drafter.tree.depth)}')
  print(
    f'--- {_speed(counts)}; prompt of {len(prompt_tokens)} tokens: '
    f'{1e3 * counts["prefill_seconds"]:.0f} ms'
  )
  plain = {}
  if speedup and drafter.tree.depth:
    plain = _against_plain(target, request, prompt_tokens, arguments)
  return plain | {
    'prompt': prompt.text,
    'text': target.tokenizer.decode(
      _without_stop(output, target), prompt_tokens
    ),
    **counts,
    'temperature': sampling.temperature,
    'verifier': verifier,
    'lossless': lossless,
    'draft_len': drafter.tree.depth,
    'seed': seed,
  }


def _speed(timed: Mapping[str, Any]) -> str:
  tokens, seconds = timed['tokens'], timed['seconds']
  if not tokens:
    return 'no token'
  return (
    f'{1e3 * seconds / tokens:.2f} ms a token, {tokens / seconds:.1f} tokens a '
    'second'
  )


def total(lines: Sequence[Mapping[str, Any]]) -> str:
  """Returns the speed, τ and speedup of several completions together."""
  add = lambda key: sum(line[key] for line in lines)
  timed = {'tokens': add('tokens'), 'seconds': add('seconds')}
  tau = block_efficiency(add('accepted'), add('rounds'))
  text = f'{timed["tokens"]} tokens, {_speed(timed)}, τ {tau:.2f}'
  if all('speedup' in line for line in lines):
    plain_ms, draft_ms = (
      sum(line[f'{name}_ms_per_token'] * line['tokens'] for line in lines)
      for name in ('plain', 'draft')
    )
    text += f', speedup {plain_ms / draft_ms:.2f}x'
  return text


def _against_plain(
  target: LanguageModel,
  request: Request,
  prompt_tokens: Sequence[int],
  arguments: Mapping[str, Any],
) -> dict[str, float]:
  """Times decoding with the draft and without, and prints the speedup.

  Returns:
    Entries for a line of metrics.jsonl.
  """
  rule = verification.name_without_draft(arguments['verifier'])
  plain = Request.make(
    target,
    [prompt_tokens],
    **arguments | dict(drafter=None, verifier=rule),
  )
  compile_programs([plain], stays=False)
  times = []
  for _ in range(_REPEATS):  # interleaved, because machines change their speed
    times.append([_ms(request), _ms(plain)])
  # Other work only slows a loop, so that the fastest counts. All processes must
  # agree, because they compute the following together.
  fastest = np.min(distributed.of_first(times), axis=0).tolist()
  (ms, round_ms), (plain_ms, step_ms) = fastest
  print(
    f'--- in one compiled loop: {ms:.2f} ms a token, {plain_ms:.2f} without a '
    f'draft; speedup {plain_ms / ms:.2f}x'
  )
  if plain_ms < ms:
    drafter = request.inputs.drafter
    nodes = drafter.tree.size
    score_ms = None
    if not rounds_differ(drafter):
      passes = timing.pass_times(
        target, [1, nodes], list(prompt_tokens), arguments['max_new_tokens']
      )
      score_ms = passes[nodes] / passes[1] * step_ms
    tau = complete(request).block_efficiency
    print(f'--- {break_even.sentence(nodes, step_ms, score_ms, round_ms, tau)}')
  return {
    'draft_ms_per_token': ms,
    'plain_ms_per_token': plain_ms,
    'speedup': plain_ms / ms,
  }


def _ms(request: Request) -> tuple[float, float]:
  """Returns the milliseconds of a token and of a round."""
  out = complete(request)
  ms = 1e3 * out.decode_seconds
  return ms / max(len(out.tokens[0]), 1), ms / max(int(out.rounds[0]), 1)


def _print_rounds(
  request: Request, decode: 'Incremental', before: str, after: str
) -> tuple[list[int], dict[str, Any]]:
  """Decodes a request and prints its text, with accepted tokens marked.

  Returns:
    The output tokens, and the counts and seconds for a line of metrics.jsonl.
  """
  output, accepted, num_rounds = [], 0, 0
  began = time.perf_counter()
  state = jax.block_until_ready(request.prefill())
  prefill_seconds, seconds = time.perf_counter() - began, 0.0
  steps = rounds(request, state)
  while True:
    began = time.perf_counter()
    step = next(steps, None)
    seconds += time.perf_counter() - began  # printing is not counted
    if step is None:
      break
    tokens, kept = step.tokens[0], step.num_accepted[0]
    drafted = decode(tokens[:kept])
    if drafted:
      print(f'{before}{drafted}{after}', end='')
    print(decode(tokens[kept:]), end='', flush=True)
    output += tokens
    accepted += kept
    num_rounds += 1
  return output, {
    'tokens': len(output),
    'rounds': num_rounds,
    'accepted': accepted,
    'block_efficiency': block_efficiency(accepted, num_rounds),
    'prefill_seconds': prefill_seconds,
    'seconds': seconds,
  }


def _counted(
  output: Sequence[int],
  counts: Mapping[str, Any],
  target: LanguageModel,
  depth: int,
) -> str:
  """Returns the counts of a completion, those of hidden tokens included."""
  accepted = counts['accepted']
  notes = [
    f'{len(output)} tokens in {counts["rounds"]} passes of the target, '
    f'τ {counts["block_efficiency"]:.2f}'
  ]
  if depth:
    notes.append(f'accepted draft tokens: {accepted}')
  if output and output[-1] in target.tokenizer.stop_ids:
    notes.append('the last token is a stop token, not shown')
  # Every pass emits its accepted tokens and one token of the target.
  cut = counts['rounds'] + accepted - len(output)
  if cut:
    notes.append(f'tokens cut at the end: {cut}')
  return '; '.join(notes)


def _without_stop(tokens: Sequence[int], target: LanguageModel):
  return [t for t in tokens if t not in target.tokenizer.stop_ids]


class Incremental:
  """Text of tokens that arrive in pieces; incomplete characters wait."""

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
