"""A page of one prompt's completions by several methods, side by side."""

import html
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specsamp.decoding.generate import Round, stream
from specsamp.decoding.state import block_efficiency
from specsamp.evaluation.methods import Label, Method
from specsamp.evaluation.metrics import Line, Row
from specsamp.evaluation.reporting import paper_figures
from specsamp.experiments.terminal import Incremental
from specsamp.language_model import LanguageModel
from specsamp.utils import distributed, files, progress

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


class Answer(NamedTuple):
  """A completion, in rounds.

  Attributes:
    name: name of the method.
    rounds: (text of accepted tokens, text of the others) of each round.
    tokens: emitted tokens.
    accepted: accepted draft tokens, with those cut at the end.
  """

  name: str
  rounds: list[tuple[str, str]]
  tokens: int
  accepted: int


def write(
  target: LanguageModel,
  methods: Mapping[Label, Method],
  rows: Sequence[Row],
  lines: Sequence[Line],
  prompt: str,
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
    lines: lines of `runner.compare` without batches.
    prompt: the first prompt, as text.
    tokens: its token ids.
    title: title of the page.
    folder: folder of `PAGE`.
  """
  fastest = [
    max(group, key=lambda row: row.speedup or 0)
    for group in paper_figures.alternatives(rows)
  ][:_MAX_TEXTS]
  answers = []
  for row in progress.bar('texts', fastest, unit='method', stays=False):
    line = next(line for line in lines if line.label == row.label)
    method = methods[row.label]
    name = f'{row.method_name}, {row.draft_name}, {row.sampling_name}'
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
    answers.append(_answer(name, rounds, Incremental(target, tokens)))
  page = page_of(title, prompt, answers)
  distributed.first_does(
    lambda: files.replace(folder / PAGE, page), f'{folder / PAGE}'
  )


def _answer(name: str, rounds: Sequence[Round], decode: Incremental) -> Answer:
  texts, tokens, accepted = [], 0, 0
  for step in rounds:
    new, kept = step.tokens[0], step.num_accepted[0]
    texts.append((decode(new[:kept]), decode(new[kept:])))
    tokens += len(new)
    accepted += kept
  return Answer(name, texts, tokens, accepted)


def page_of(title: str, prompt: str, answers: Sequence[Answer]) -> str:
  """Returns the page as HTML, with all texts escaped."""
  escape = html.escape
  parts = [_HEAD.format(title=escape(title))]
  parts.append(f'<pre class="prompt">{escape(prompt)}</pre><br>')
  parts.append('<div class="texts">')
  for answer in answers:
    rounds = len(answer.rounds)
    parts.append(
      f'<figure><figcaption><b>{escape(answer.name)}</b><br>{answer.tokens} '
      f'tokens in {rounds} rounds, '
      f'τ {block_efficiency(answer.accepted, rounds):.2f}; '
      f'accepted draft tokens: {answer.accepted}</figcaption><pre>'
    )
    for number, (drafted, own) in enumerate(answer.rounds, start=1):
      marked = f'<mark>{escape(drafted)}</mark>' if drafted else ''
      parts.append(
        f'<span title="round {number}">{marked}'
        f'<span class="own">{escape(own)}</span></span>'
      )
    parts.append('</pre></figure>')
  parts.append('</div></body></html>')
  return ''.join(parts) + '\n'
