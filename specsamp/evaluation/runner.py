"""Runs methods side by side on the same prompts."""

import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from specsamp import fingerprint, verification
from specsamp.decoding.generate import Generation, complete
from specsamp.decoding.request import Request, compile_programs
from specsamp.drafting.drafter import Drafter
from specsamp.evaluation import metrics
from specsamp.evaluation.methods import Json, Label, Method
from specsamp.evaluation.metrics import Line
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.evaluation.tasks import Question, Task, last, tokens_of
from specsamp.language_model import LanguageModel
from specsamp.utils import distributed, progress, user_modules

# A line of metrics.jsonl, which also has the plain values of its label.
_Answer = TypedDict('_Answer', Line.__annotations__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Settings of all methods and prompts.

  Attributes:
    max_prompt_tokens: longer conversations lose their beginning.
    max_new_tokens: upper bound on the tokens of an answer.
    seed: seed of all draws.
    samples: samples of each prompt at temperatures above 0.
    chat: True to write prompts as turns of the target's chat template.
    chat_template_kwargs: variables of the template.
    sweep_prompts: number of prompts of each task that every method answers;
      only the baselines and the fastest draft of each sampling answer the rest.
      None is all prompts.
    batch_size: prompts of a task that are answered together, each in a single
      turn. A line then has its share of their time. Rows begin and end
      together: in an `Engine` prompt passes would fall between the rounds of
      other rows, and a line's time would be undefined.
  """

  max_prompt_tokens: int
  max_new_tokens: int
  seed: int
  samples: int = 1
  chat: bool = False
  chat_template_kwargs: Mapping[str, Any] | None = None
  sweep_prompts: int | None = None
  batch_size: int = 1

  def conversation(
    self, target: LanguageModel, prompt: Question, answers: Sequence[str]
  ) -> tuple[list[int], bool]:
    """Returns the tokens to answer, and True if their beginning was dropped."""
    whole = tokens_of(
      target.tokenizer, prompt, answers, self.chat, self.chat_template_kwargs
    )
    tokens = last(whole, self.max_prompt_tokens, target.tokenizer)
    return tokens, len(tokens) < len(whole)


class _Item(NamedTuple):
  """A prompt to be answered by a method.

  `head` has the fields of the line that are known before it is decoded, with
  those of the label as plain values. `in_sweep` is True if every method answers
  the prompt.
  """

  method: Method
  task: Task
  prompt: Question
  new_tokens: int
  label: Label
  head: dict[str, Json]
  in_sweep: bool

  @property
  def id(self) -> str:
    return self.head['id']


def compare(
  target: LanguageModel,
  methods: Sequence[Method],
  tasks: Sequence[Task],
  settings: Settings,
  path: pathlib.Path,
) -> list[Line]:
  """Answers every prompt by every method, batch by batch.

  The methods of a sampling are interleaved on each batch, so that a machine
  whose speed drifts is equally fast for all of them. One sampling follows
  another, because memory has room for few programs. Every program runs once
  before it is timed. The methods draw from independent random bits.

  Args:
    target: the target.
    methods: methods to compare, all different.
    tasks: tasks to answer. Answers without an end have the same length.
    settings: settings of all methods.
    path: `RunLog` of the answers, from which an interrupted run resumes. All
      prompts of an incomplete batch are decoded again.

  Returns:
    The lines, ordered by task, sample, prompt and method.
  """
  items = {item.id: item for item in _items(target, methods, tasks, settings)}
  log = RunLog(
    path,
    _Answer,
    lambda answer: answer['id'],
    lambda answer: answer['id'] in items and _fits(answer, items[answer['id']]),
  )
  batches = [
    {item.id for item in batch}
    for batch in _batches(list(items.values()), settings.batch_size)
  ]
  log.keep(set().union(*(ids for ids in batches if ids <= log.records.keys())))
  sweep = [item for item in items.values() if item.in_sweep]
  rest = [item for item in items.values() if not item.in_sweep]
  phase = 'decoding, all methods' if rest else 'decoding'
  _decode(target, sweep, settings, log, phase)
  if rest:
    fastest = _fastest(_lines(sweep, log))
    rest = [item for item in rest if item.label in fastest]
    _decode(target, rest, settings, log, 'decoding, fastest drafts')
  return _lines(items.values(), log)


def _items(target, methods, tasks, settings: Settings) -> list[_Item]:
  labels = [method.label for method in methods]
  weights = [
    [target.fingerprint, fingerprint.of(method.drafter)] for method in methods
  ]
  items = []
  for task in tasks:
    new_tokens = task.new_tokens(settings.max_new_tokens)
    sizes = [settings.max_prompt_tokens, new_tokens, settings.chat]
    if settings.batch_size > 1:
      sizes.append(settings.batch_size)
    if settings.chat_template_kwargs:
      sizes.append(settings.chat_template_kwargs)
    for sample, (i, prompt) in itertools.product(
      range(settings.samples), enumerate(task.prompts)
    ):
      in_sweep = settings.sweep_prompts is None or i < settings.sweep_prompts
      for method, label, weight in zip(methods, labels, weights, strict=True):
        if sample and not method.temperature:
          continue  # all greedy answers are the same
        head = label.plain() | {
          'task': task.name,
          'prompt': prompt.name,
          'sample': sample,
        }
        # Losslessness tests compare the answers of two methods as independent
        # draws.
        named = json.dumps([settings.seed, head]).encode()
        bits = int.from_bytes(hashlib.sha256(named).digest()[:4], 'big')
        head['seed'] = bits >> 2  # seeds of later turns stay below 2**31
        head['id'] = _id(head, weight, method, task, prompt, sizes)
        items.append(
          _Item(method, task, prompt, new_tokens, label, head, in_sweep)
        )
  return items


def _id(head, weight, method, task, prompt, sizes) -> str:
  """Returns a hash of all that affects an answer."""
  digests = []  # of user-defined parts
  if method.drafter is not None:
    rule = method.verifier
    rule = verification.make(rule) if isinstance(rule, str) else rule
    digests = map(user_modules.source_digest, (method.drafter, rule))
  settings = [
    head,
    weight,
    method.label.tree.parents,
    [prompt.text, *prompt.later],
    sizes,
    task.ends,
    _drafter_settings(method.drafter),
    *filter(None, digests),
  ]
  return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]


def _drafter_settings(drafter: Drafter | None) -> dict[str, Json]:
  """Returns the settings of a drafter other than weights, tree and law."""
  if not dataclasses.is_dataclass(drafter):
    return {}
  settings = {}
  for field in dataclasses.fields(drafter):
    value = getattr(drafter, field.name)
    if isinstance(value, int | str):
      settings[field.name] = value
    elif hasattr(value, 'tree'):  # a drafter that contains another one
      settings[field.name] = _drafter_settings(value)
  return settings


def _fits(answer: _Answer, item: _Item) -> bool:
  """Returns True if the counts of an answer agree with each other."""
  depth = item.label.tree.depth
  return (
    answer['tokens'] == sum(map(len, answer['output_tokens'])) > 0
    and answer['rounds'] == len(answer['num_drafted_per_round']) > 0
    and len(answer['texts']) == 1 + len(item.prompt.later)
    and len(answer['num_drafted_per_pos']) == depth
    and len(answer['num_accepted_per_pos']) == depth
  )


def _lines(items: Iterable[_Item], log: RunLog[_Answer]) -> list[Line]:
  """Returns the lines of all items that have an answer."""
  lines = []
  for item in items:
    if answer := log.records.get(item.id):
      values = {name: answer[name] for name in Line.__annotations__}
      lines.append(Line(**vars(item.label), **values))
  return lines


def _batches(items: Sequence[_Item], size: int) -> list[list[_Item]]:
  """Returns batches of one task and method each, the methods interleaved.

  Prompts of a batch have similar lengths: every pass over prompts is as long as
  the longest of its batch.
  """
  if size == 1:
    return [[item] for item in items]
  groups: dict[tuple, list[_Item]] = {}
  length = lambda item: (not item.in_sweep, -len(item.prompt.text))
  for item in sorted(items, key=length):
    groups.setdefault((item.label, item.task.name), []).append(item)
  batches = [
    [group[i : i + size] for i in range(0, len(group), size)]
    for group in groups.values()
  ]
  interleaved = itertools.chain.from_iterable(itertools.zip_longest(*batches))
  return list(filter(None, interleaved))


def _fastest(lines: Sequence[Line]) -> set[Label]:
  """Returns the baselines, and the fastest draft of each sampling."""
  rows = metrics.overall(lines)
  fastest = {}
  for row in sorted(rows, key=lambda row: row.ms_per_token):
    # A baseline for each sampling, and a draft.
    fastest.setdefault((row.sampling, row.tree.depth > 0), row.label)
  return set(fastest.values())


def _decode(
  target: LanguageModel,
  items: Sequence[_Item],
  settings: Settings,
  log: RunLog[_Answer],
  phase: str,
) -> None:
  """Answers all items that the log lacks, each in a compiled program."""
  by_sampling: dict[str, list[_Item]] = {}
  for item in items:
    by_sampling.setdefault(item.label.sampling_name, []).append(item)
  for name, group in by_sampling.items():
    missing = [item for item in group if item.id not in log.records]
    if missing:
      _decode_missing(target, missing, settings, log, f'{phase}, {name}')


def _decode_missing(target, missing, settings, log, phase) -> None:
  batches = _batches(missing, settings.batch_size)
  compile_programs(
    _request(
      target,
      batch,
      [settings.conversation(target, item.prompt, ())[0] for item in batch],
      turn=0,
    )
    for batch in batches
  )
  with progress.bar(phase, total=len(missing), unit='seq') as bar:
    for batch in batches:
      answers = _converse(target, batch, settings, bar.unpause)
      log.append(
        *(
          item.head | answer
          for item, answer in zip(batch, answers, strict=True)
        )
      )
      bar.update(len(batch))


def _converse(
  target: LanguageModel,
  batch: Sequence[_Item],
  settings: Settings,
  compiled: Callable[[], None],
) -> list[dict[str, Json]]:
  """Answers all turns of a batch, and returns the fields of each line.

  In a batch of several items each has one turn. `compiled` is called after a
  program was compiled, because an answer made the conversation longer or the
  program was evicted.
  """
  answers: list[Generation] = []
  cuts = []
  for turn in range(1 + len(batch[0].prompt.later)):
    texts = [answer.texts[0] for answer in answers]
    conversations = [
      settings.conversation(target, item.prompt, texts) for item in batch
    ]
    rows, is_cut = zip(*conversations, strict=True)
    cuts.append(is_cut)
    request = _request(target, batch, list(rows), turn)
    if not request.is_compiled:
      request.compile()
      compiled()
    answers.append(complete(request))
  return [
    _totals(answers, row, len(batch)) | {'cut': list(cut)}
    for row, cut in enumerate(zip(*cuts, strict=True))
  ]


def _request(
  target: LanguageModel,
  batch: Sequence[_Item],
  rows: list[list[int]],
  turn: int,
) -> Request:
  method = batch[0].method
  return Request.make(
    target,
    rows,
    drafter=method.drafter,
    verifier=method.verifier,
    sampling=method.sampling_params,
    max_new_tokens=batch[0].new_tokens,
    seed=[item.head['seed'] + turn for item in batch],
    stop_tokens=None if batch[0].task.ends else (),
    tree_attention=method.tree_attention,
  )


def _totals(
  turns: Sequence[Generation], row: int, batch_size: int
) -> dict[str, Json]:
  """Returns the sums over the turns of one row, and each turn's output."""
  total = lambda name: sum(getattr(turn, name)[row] for turn in turns)
  # All processes choose the fastest draft by the clock of the first one.
  seconds = lambda name: distributed.of_first(
    float(sum(getattr(turn, name) for turn in turns)) / batch_size
  )
  return {
    'tokens': sum(len(turn.tokens[row]) for turn in turns),
    'rounds': int(total('rounds')),
    'num_drafted_per_round': [
      depth for turn in turns for depth in turn.num_drafted_per_round[row]
    ],
    'num_drafted_per_pos': total('num_drafted_per_pos').tolist(),
    'num_accepted_per_pos': total('num_accepted_per_pos').tolist(),
    'prefill_seconds': seconds('prefill_seconds'),
    'decode_seconds': seconds('decode_seconds'),
    'output_tokens': [turn.tokens[row] for turn in turns],
    'texts': [turn.texts[row] for turn in turns],
  }
