"""Completions with accepted draft tokens marked, on a terminal or a page."""

import html
import pathlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specsamp import verification
from specsamp.data.prompts import Prompt
from specsamp.decoding.generate import Round, complete, rounds, stream
from specsamp.decoding.request import Request, compile_programs
from specsamp.decoding.state import block_efficiency
from specsamp.drafting import Drafter
from specsamp.evaluation.methods import Label, Method
from specsamp.evaluation.metrics import Line, Row
from specsamp.evaluation.reporting import paper_figures
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import distributed, files, progress

_REPEATS = 2
_GREEN, _PLAIN = '\x1b[32m', '\x1b[0m'
PAGE = 'texts.html'
_MAX_TEXTS = 12

_HEAD = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px/1.45 system-ui, sans-serif; margin: 1.5em; color: #222 }}
.texts {{ display: grid; gap: 1em;
  grid-template-columns: repeat(auto-fill, minmax(24em, 1fr)) }}
figure {{ margin: 0; border: 1px solid #ccc; border-radius: 4px }}
figcaption {{ padding: .4em .7em; background: #f3f3f3 }}
pre {{ margin: 0; padding: .7em; white-space: pre-wrap; font-size: 12px;
  overflow-wrap: anywhere }}
.prompt {{ border: 1px solid #ccc; border-radius: 4px; color: #666 }}
mark {{ background: #bfe8c4; color: inherit }}
.own {{ border-right: 2px solid #d9a24a }}
</style></head><body><h1>{title}</h1>
<p>Accepted draft tokens are <mark>marked</mark>; the target's token, which ends
a round, <span class="own">has a bar behind it</span>.</p>
"""


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
    max_new_tokens: see `specsamp.generate`.
    seed: see `specsamp.generate`.
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
  color, depth = sys.stdout.isatty(), drafter.tree.depth
  marks = (_GREEN, _PLAIN) if color else ('«', '»')
  mark = 'green' if color else 'between marks'.join(marks)
  lossless = verification.make(verifier).lossless
  warning = '' if lossless else f'; {verifier} is NOT lossless'
  marked = f'; accepted draft tokens are {mark}' if depth else ''
  print(f'--- {prompt.name}{marked}{warning}')
  print(prompt.text, end='', flush=True)
  output, counts = _print_rounds(
    request, Incremental(target, prompt_tokens), marks
  )
  notes = [
    f'{len(output)} tokens in {counts["rounds"]} passes of the target, '
    f'τ {counts["block_efficiency"]:.2f}'
  ]
  if depth:
    notes.append(f'accepted draft tokens: {counts["accepted"]}')
  if output and output[-1] in target.tokenizer.stop_ids:
    notes.append('the last token is a stop token, not shown')
  # Every pass emits its accepted tokens and one token of the target.
  cut = counts['rounds'] + counts['accepted'] - len(output)
  if cut:
    notes.append(f'tokens cut at the end: {cut}')
  print(f'\n--- {"; ".join(notes)}')
  print(
    f'--- {_speed(**counts)}; prompt of {len(prompt_tokens)} tokens: '
    f'{1e3 * counts["prefill_seconds"]:.0f} ms'
  )
  times = {}
  if speedup and depth:
    rule = verification.name_without_draft(verifier)
    plain = Request.make(
      target, [prompt_tokens], **arguments | dict(drafter=None, verifier=rule)
    )
    times = _against_plain(request, plain)
  return times | {
    'prompt': prompt.text,
    'text': target.tokenizer.decode(
      _without_stop(output, target), prompt_tokens
    ),
    **counts,
    'temperature': sampling.temperature,
    'verifier': verifier,
    'lossless': lossless,
    'draft_len': depth,
    'seed': seed,
  }


def _speed(tokens: int, seconds: float, **_) -> str:
  return (
    f'{1e3 * seconds / tokens:.2f} ms a token, {tokens / seconds:.1f} tokens a '
    'second'
  )


def total(lines: Sequence[Mapping[str, Any]]) -> str:
  """Returns the speed, τ and speedup of several completions together."""
  add = lambda key: sum(line[key] for line in lines)
  speed = _speed(add('tokens'), add('seconds'))
  tau = block_efficiency(add('accepted'), add('rounds'))
  text = f'{add("tokens")} tokens, {speed}, τ {tau:.2f}'
  if all('speedup' in line for line in lines):
    plain_ms, draft_ms = (
      sum(line[f'{name}_ms_per_token'] * line['tokens'] for line in lines)
      for name in ('plain', 'draft')
    )
    text += f', speedup {plain_ms / draft_ms:.2f}x'
  return text


def _against_plain(drafted: Request, plain: Request) -> dict[str, float]:
  """Times and prints the speedup; returns entries for a line of the log."""
  compile_programs([plain], stays=False)
  # Interleaved, because machines change their speed.
  times = [[_ms(drafted), _ms(plain)] for _ in range(_REPEATS)]
  # Other work only slows a loop, so that the fastest counts.
  ms, plain_ms = np.min(distributed.of_first(times), axis=0).tolist()
  print(
    f'--- in one compiled loop: {ms:.2f} ms a token, {plain_ms:.2f} without a '
    f'draft; speedup {plain_ms / ms:.2f}x'
  )
  return {
    'draft_ms_per_token': ms,
    'plain_ms_per_token': plain_ms,
    'speedup': plain_ms / ms,
  }


def _ms(request: Request) -> float:
  """Returns the milliseconds per token of a request."""
  out = complete(request)
  return 1e3 * out.decode_seconds / len(out.tokens[0])


def _print_rounds(
  request: Request, decode: 'Incremental', marks: tuple[str, str]
) -> tuple[list[int], dict[str, Any]]:
  """Decodes a request and prints its text, with accepted tokens marked.

  Returns the output tokens, and counts and seconds for a line of the log.
  """
  before, after = marks
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


def _without_stop(tokens: Sequence[int], target: LanguageModel):
  return [t for t in tokens if t not in target.tokenizer.stop_ids]


class Incremental:
  """Text of tokens that arrive in pieces, without incomplete characters."""

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


def write_page(
  target: LanguageModel,
  methods: Mapping[Label, Method],
  rows: Sequence[Row],
  lines: Sequence[Line],
  tokens: Sequence[int],
  title: str,
  folder: pathlib.Path,
) -> None:
  """Decodes one prompt again by the fastest draft of each name.

  The completions have the seeds of the first prompt's lines, and equal them.

  Args:
    target: the target.
    methods: methods by their labels.
    rows: rows of all tasks together, which determine the fastest drafts.
    lines: lines of `runner.compare` without batches, of the first prompt.
    tokens: token ids of the first prompt.
    title: title of the page.
    folder: folder of `PAGE`.
  """
  fastest = [
    max(group, key=lambda row: row.speedup or 0)
    for group in paper_figures.alternatives(rows)
  ][:_MAX_TEXTS]
  prompt = html.escape(target.tokenizer.decode(tokens))
  parts = [
    _HEAD.format(title=html.escape(title)),
    f'<pre class="prompt">{prompt}</pre><br><div class="texts">',
  ]
  for row in progress.bar('texts', fastest, unit='method', stays=False):
    line = next(line for line in lines if line.label == row.label)
    method = methods[row.label]
    rounds = stream(
      target,
      [tokens],
      drafter=method.drafter,
      verifier=method.verifier,
      sampling=method.sampling_params,
      max_new_tokens=len(line.output_tokens[0]),
      seed=line.seed,
      stop_tokens=(),
      tree_attention=method.tree_attention,
    )
    name = f'{row.method_name}, {row.draft_name}, {row.sampling_name}'
    parts.append(_figure(name, rounds, Incremental(target, tokens)))
  page = ''.join([*parts, '</div></body></html>\n'])
  distributed.first_does(
    lambda: files.replace(folder / PAGE, page), f'{folder / PAGE}'
  )


def _figure(name: str, rounds: Iterable[Round], decode: Incremental) -> str:
  """Returns the HTML of a completion, with its texts escaped."""
  spans, accepted, num_tokens = [], 0, 0
  for number, step in enumerate(rounds, start=1):
    tokens, kept = step.tokens[0], step.num_accepted[0]
    drafted = html.escape(decode(tokens[:kept]))
    emitted = html.escape(decode(tokens[kept:]))
    marked = f'<mark>{drafted}</mark>' if drafted else ''
    spans.append(
      f'<span title="round {number}">{marked}'
      f'<span class="own">{emitted}</span></span>'
    )
    num_tokens += len(tokens)
    accepted += kept
  return (
    f'<figure><figcaption><b>{html.escape(name)}</b><br>{num_tokens} tokens in '
    f'{len(spans)} rounds, τ {block_efficiency(accepted, len(spans)):.2f}; '
    f'accepted draft tokens: {accepted}</figcaption>'
    f'<pre>{"".join(spans)}</pre></figure>'
  )
