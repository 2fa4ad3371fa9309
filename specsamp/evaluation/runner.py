"""Runs methods side by side on the same prompts."""

import dataclasses
import hashlib
import itertools
import json
import operator
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from specsamp import fingerprint
from specsamp.decoding.generate import Generation, complete
from specsamp.decoding.request import Request, compile_programs
from specsamp.evaluation import line_head, metrics
from specsamp.evaluation.methods import Json, Label, Method
from specsamp.evaluation.metrics import Head, Line
from specsamp.evaluation.tasks import Question, Task, last, tokens_of
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import distributed, files, progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """What holds for all methods and prompts.

  Attributes:
    max_prompt_tokens: of longer conversations the last ones.
    max_new_tokens: in every answer, at most.
    seed: of all draws.
    samples: of every prompt, at temperatures above 0.
    chat: prompts are turns in the target's chat template.
    sweep_prompts: so many of each task are answered by every method, the others
      by the baselines and by the fastest draft of each sampling. None: all.
    batch_size: so many prompts are answered together, each in one turn; a line
      then has its share of their time. They begin and end together: in an
      `Engine` prompt passes would fall between the rounds of others, and no
      line would have a time of its own.
    shuffled: whether these are of all tasks and temperatures, else of one.
  """

  max_prompt_tokens: int
  max_new_tokens: int
  seed: int
  samples: int = 1
  chat: bool = False
  sweep_prompts: int | None = None
  batch_size: int = 1
  shuffled: bool = False

  def conversation(
    self, target: LanguageModel, prompt: Question, answers: Sequence[str]
  ) -> tuple[list[int], bool]:
    """The tokens to answer, and whether their beginning was cut off."""
    whole = tokens_of(target.tokenizer, prompt, answers, self.chat)
    tokens = last(whole, self.max_prompt_tokens, target.tokenizer)
    return tokens, len(tokens) < len(whole)


class _Item(NamedTuple):
  """A prompt to be answered by a method.

  Attributes:
    method: the method.
    task: of which it is.
    prompt: to answer, in all its turns.
    new_tokens: in an answer, at most.
    head: what is known of its line.
    of_all: whether every method answers it.
  """

  method: Method
  task: Task
  prompt: Question
  new_tokens: int
  head: Head
  of_all: bool


def compare(
  target: LanguageModel,
  methods: Sequence[Method],
  tasks: Sequence[Task],
  settings: Settings,
  path: pathlib.Path,
) -> list[Line]:
  """Answers every prompt by every method, batch by batch.

  The methods take turns on each batch, so that a machine whose speed drifts
  is as fast for one as for another. Every program has run once before its times
  count. What one method emits does not depend on the random bits of another.

  Args:
    target: the target.
    methods: what to compare, no two of them equal.
    tasks: what to answer. Those whose answers have no end are answered to the
      same length, whatever comes.
    settings: of all of them.
    path: a JSON line for every prompt, method and sample goes here as soon as
      it is done; what it holds from a run that was cut off is not decoded
      again.

  Returns:
    The lines, in the order of the methods, resumed or not.
  """
  items = _items(target, methods, tasks, settings)
  by_id = {item.head.id: item for item in items}
  num_tokens = target.config.num_tokens
  found = files.read_lines(
    path,
    lambda line: _is_own(line, by_id, num_tokens),
    key=lambda line: line['id'],
  )
  distributed.wait('what is done is read')
  kept = {line['id']: line for line in found.kept}
  for batch in _batches(items, settings):
    ids = [item.head.id for item in batch]
    if not kept.keys() >= set(ids):  # what was decoded together is so again
      for id_ in ids:
        kept.pop(id_, None)
  found.rewrite([kept[id_] for id_ in by_id if id_ in kept])
  lines = [
    _line(item.head, kept[id_]) for id_, item in by_id.items() if id_ in kept
  ]
  todo = [item for id_, item in by_id.items() if id_ not in kept]
  answers = _Answers(target, settings)
  with distributed.first_opens(path, 'a') as file:
    for phase, part in _in_turn(items, todo, lines):
      batches = _batches(part, settings)
      answers.compile(batches)
      with progress.bar(phase, total=len(part), unit='seq') as bar:
        for batch in batches:
          made = answers.converse(batch, bar.unpause)
          for item, each in zip(batch, made, strict=True):
            file.write(json.dumps(item.head.plain() | each) + '\n')
            lines.append(_line(item.head, each))
          file.flush()
          bar.update(len(batch))
  order = {id_: i for i, id_ in enumerate(by_id)}
  return sorted(lines, key=lambda line: order[line.id])


def _items(target, methods, tasks, settings: Settings) -> list[_Item]:
  weights = [
    [target.fingerprint, fingerprint.of(method.drafter)] for method in methods
  ]

  def make(task, i, sample, method, weights) -> _Item:
    prompt = task.prompts[i]
    new_tokens = task.new_tokens(settings.max_new_tokens)
    sizes = (settings.max_prompt_tokens, new_tokens, settings.chat)
    if settings.batch_size > 1:
      sizes += (settings.batch_size, settings.shuffled)
    head = line_head.of(
      method, weights, task, prompt, sample, settings.seed, sizes
    )
    most = settings.sweep_prompts
    of_all = most is None or i < most
    return _Item(method, task, prompt, new_tokens, head, of_all)

  return [
    make(task, i, sample, method, own)
    for task in tasks
    for sample in range(settings.samples)
    for i in range(len(task.prompts))
    for method, own in zip(methods, weights, strict=True)
    if not sample or method.temperature
  ]


def _batches(items: Sequence[_Item], settings: Settings) -> list[list[_Item]]:
  """What is answered together, in the order in which the methods take turns."""
  if settings.batch_size == 1:
    return [[item] for item in items]
  own: dict[tuple, list[_Item]] = {}
  for item in items:
    label = item.method.label
    if settings.shuffled:
      any_sampling = dict(temperature=0, top_p=1.0, top_k=0)
      key = (dataclasses.replace(label, **any_sampling),)
    else:
      key = label, item.task.name
    own.setdefault(key, []).append(item)
  if settings.shuffled:  # the same way for every method
    for batch in own.values():
      batch.sort(key=lambda item: _shuffled(item, settings.seed))
  size = settings.batch_size
  parts = [
    [batch[i : i + size] for i in range(0, len(batch), size)]
    for batch in own.values()
  ]
  turns = itertools.zip_longest(*parts)
  return [batch for turn in turns for batch in turn if batch]


def _shuffled(item: _Item, seed: int) -> bytes:
  head = item.head
  names = [seed, head.task, head.prompt, head.sample, head.temperature]
  return hashlib.sha256(json.dumps(names).encode()).digest()


def _in_turn(
  items: Sequence[_Item], todo: Sequence[_Item], lines: Sequence[Line]
) -> Iterator[tuple[str, list[_Item]]]:
  """Yields what every method answers, then the rest, which the fastest answer.

  Args:
    items: all of them.
    todo: those that have no line yet.
    lines: grows while this is read: by the end of the first part it has all.

  Yields:
    The name of the phase, and its items.
  """
  rest = [item for item in todo if not item.of_all]
  first = [item for item in todo if item.of_all]
  yield 'decoding, all methods' if rest else 'decoding', first
  if rest:
    asked = {item.head.id for item in items if item.of_all}
    fastest = _fastest([line for line in lines if line.id in asked])
    part = [item for item in rest if item.method.label in fastest]
    yield 'decoding, fastest drafts', part


def _fastest(lines: Sequence[Line]) -> set[Label]:
  """The baselines, and the fastest draft of each sampling."""
  found, drafts = set(), {}
  for row in metrics.overall(lines):
    if row.tree.depth:
      best = drafts.setdefault(row.sampling, row)
      if row.ms_per_token < best.ms_per_token:
        drafts[row.sampling] = row
    else:
      found.add(row.label)
  return found | {row.label for row in drafts.values()}


class _Answers:
  """Answers items, each in a program that has run before."""

  def __init__(self, target: LanguageModel, settings: Settings):
    self._target = target
    self._settings = settings

  def compile(self, batches: Sequence[Sequence[_Item]]) -> None:
    """The programs that the first answers of these need."""
    compile_programs(
      self._request(batch, [self._asked(item, ())[0] for item in batch])
      for batch in batches
    )

  def converse(
    self, batch: Sequence[_Item], compiled: Callable[[], None]
  ) -> list[dict[str, Json]]:
    """Answers all turns; what each line has beside its head.

    Args:
      batch: to answer together; of several none has a later turn.
      compiled: called when a program was compiled first, because an answer made
        the conversation longer or the program had been let go.
    """
    answers: list[Generation] = []
    cuts = []
    for turn in range(1 + len(batch[0].prompt.later)):
      answered = [answer.texts[0] for answer in answers]
      asked = [self._asked(item, answered) for item in batch]
      cuts.append([is_cut for _, is_cut in asked])
      request = self._request(batch, [tokens for tokens, _ in asked], turn)
      if not request.is_compiled:
        request.compile()
        compiled()
      answers.append(complete(request))
    return [
      _totals(answers, row, len(batch)) | {'cut': list(cut)}
      for row, cut in enumerate(zip(*cuts, strict=True))
    ]

  def _asked(
    self, item: _Item, answered: Sequence[str]
  ) -> tuple[list[int], bool]:
    return self._settings.conversation(self._target, item.prompt, answered)

  def _request(
    self, batch: Sequence[_Item], rows: list[list[int]], turn: int = 0
  ) -> Request:
    method = batch[0].method
    sampling = method.sampling_params
    if len(batch) > 1:
      each = [item.method.sampling_params for item in batch]
      sampling = SamplingParams(
        temperature=np.asarray([own.temperature for own in each], np.float32),
        top_p=np.asarray([own.top_p for own in each], np.float32),
        top_k=np.asarray([own.top_k for own in each], np.int32),
      )
    return Request.make(
      self._target,
      rows,
      drafter=method.drafter,
      verifier=method.verifier,
      sampling=sampling,
      max_new_tokens=[item.new_tokens for item in batch],
      seed=[item.head.seed + turn for item in batch],
      # Where some texts have no end of their own none ends early.
      stop_tokens=None if all(item.task.ends for item in batch) else (),
      tree_attention=method.tree_attention,
    )


# What a line holds beside its head: sums over the turns, then each turn's.
_LINE = {
  'id': str,
  'tokens': int,
  'rounds': int,
  'num_drafted_per_round': [int],
  'num_drafted_per_pos': [int],
  'num_accepted_per_pos': [int],
  'prefill_seconds': float,
  'decode_seconds': float,
  'output_tokens': [[int]],
  'texts': [str],
  'cut': [bool],
}


def _line(head: Head, made: dict[str, Json]) -> Line:
  return Line(
    **vars(head), **{name: made[name] for name in _LINE if name != 'id'}
  )


def _is_own(line: Any, by_id: dict[str, _Item], num_tokens: int) -> bool:
  """Whether a line is what `compare` would write of one of these items."""
  if not files.has_shape(line, _LINE) or line['id'] not in by_id:
    return False
  item = by_id[line['id']]
  turns = 1 + len(item.prompt.later)
  is_head = item.head.plain().items() <= line.items()
  depth = item.head.tree.depth if is_head else -1
  outputs = line['output_tokens']
  drafted, accepted = line['num_drafted_per_pos'], line['num_accepted_per_pos']
  return (
    [len(line[name]) for name in ('output_tokens', 'texts', 'cut')]
    == [turns] * 3
    and [len(drafted), len(accepted)] == [depth] * 2
    and all(0 < len(output) <= item.new_tokens for output in outputs)
    and all(0 <= token < num_tokens for output in outputs for token in output)
    and line['tokens'] == sum(map(len, outputs))
    and line['rounds'] == len(line['num_drafted_per_round']) > 0
    and min(line['prefill_seconds'], line['decode_seconds']) >= 0
    and all(map(operator.le, accepted, drafted))
    and min([0, *accepted]) == 0
  )


def _totals(
  found: Sequence[Generation], row: int, batch_size: int
) -> dict[str, Json]:
  """What the turns of a conversation came to, one row of each."""
  total = lambda name: sum(getattr(turn, name)[row] for turn in found)
  # What is fastest is decided by one clock.
  seconds = lambda name: distributed.of_first(
    float(sum(getattr(turn, name) for turn in found)) / batch_size
  )
  return {
    'tokens': sum(len(turn.tokens[row]) for turn in found),
    'rounds': int(total('rounds')),
    'num_drafted_per_round': [
      depth for turn in found for depth in turn.num_drafted_per_round[row]
    ],
    'num_drafted_per_pos': total('num_drafted_per_pos').tolist(),
    'num_accepted_per_pos': total('num_accepted_per_pos').tolist(),
    'prefill_seconds': seconds('prefill_seconds'),
    'decode_seconds': seconds('decode_seconds'),
    'output_tokens': [turn.tokens[row] for turn in found],
    'texts': [turn.texts[row] for turn in found],
  }
