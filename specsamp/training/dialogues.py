"""Dialogues that a chat model writes alone, to train its drafters on.

The chat template's text up to a user's turn makes the model write that turn;
then it answers (self-synthesis, Magpie, 2406.08464). No data set is needed.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import TypedDict

from specsamp.checkpoints import model_dir
from specsamp.data import prompts
from specsamp.data.tokenizers import Tokenizer
from specsamp.decoding.completions import Completion
from specsamp.decoding.engine import Engine
from specsamp.errors import UserError, check_range
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import progress

_MARK = '\u2042'  # stands for the user's turn
_GRAM = 4  # tokens
_MIN_DISTINCT = 0.6  # share of distinct grams below which a text repeats itself
_MIN_GRAMS = 16
_MIN_CHARACTERS = 12  # of a user's turn
_MIN_TOKENS = 16  # of an answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class DialoguesConfig:
  """Dialogues to write; these values, the target and the questions fix them.

  Attributes:
    target: folder or GGUF file of a chat model, or its name at the hub.
    questions: file with a user's turn on each line; '' lets the target write
      these turns as well.
    count: upper bound on the dialogues to begin. Some are dropped: a turn is
      too long, too short or repeats itself.
    slots: turns that are written at once.
    user_tokens: upper bound on the tokens of a user's turn; longer ones are
      dropped.
    answer_tokens: upper bound on the tokens of an answer; longer ones are cut.
    user_temperature: temperature of the user's turn.
    answer_temperature: temperature of the answer.
    top_p: top-p of both.
    dtype: dtype of the target's activations; '' is that of the model.
    seed: seed of the first dialogue; the next ones have the next integers.
  """

  target: str
  questions: str = ''
  count: int = 10_000
  slots: int = 48
  user_tokens: int = 96
  answer_tokens: int = 320
  user_temperature: float = 1.0
  answer_temperature: float = 0.7
  top_p: float = 0.95
  dtype: str = ''
  seed: int = 0

  def __post_init__(self):
    check_range(self, 'count', 'slots', 'user_tokens', min=1, kind=int)
    check_range(self, 'answer_tokens', min=_MIN_TOKENS, kind=int)
    check_range(self, 'seed', min=0, kind=int)
    self.user_sampling.check()
    self.answer_sampling.check()

  @property
  def user_sampling(self) -> SamplingParams:
    return SamplingParams(self.user_temperature, top_p=self.top_p)

  @property
  def answer_sampling(self) -> SamplingParams:
    return SamplingParams(self.answer_temperature, top_p=self.top_p)


class Dialogue(TypedDict):
  """A line of dialogues.jsonl.

  Attributes:
    seed: seed of both turns.
    messages: the user's turn and the answer; empty for a dropped dialogue.
    dropped: why it was dropped, or ''.
  """

  seed: int
  messages: list[dict]
  dropped: str


def write(config: DialoguesConfig, workdir: pathlib.Path) -> str:
  """Writes workdir/dialogues.jsonl, resuming a run of the workdir.

  Returns:
    A line that says how many dialogues were kept.

  Raises:
    UserError: the target has no chat template, or too few positions; or the
      file of questions cannot be read.
  """
  target = model_dir.load(config.target, None, config.dtype)
  opening = _opening(target)
  questions = None
  if config.questions:
    questions = _questions(config, target.tokenizer)
    config = dataclasses.replace(
      config, count=min(config.count, len(questions))
    )
  log = RunLog(
    workdir / 'dialogues.jsonl', Dialogue, lambda dialogue: dialogue['seed']
  )
  seeds = range(config.seed, config.seed + config.count)
  left = [seed for seed in seeds if seed not in log.records]
  if left:
    prompt = len(opening) + 32  # the template has more after the user's turn
    max_length = prompt + config.user_tokens + config.answer_tokens
    with (
      Engine(target, slots=config.slots, max_length=max_length) as engine,
      progress.bar(
        'dialogues',
        total=config.count,
        initial=config.count - len(left),
        unit='dialogue',
      ) as bar,
    ):
      for dialogue in _dialogues(config, engine, opening, questions, left):
        log.append(dialogue)
        bar.update()
  kept = sum(not record['dropped'] for record in log.records.values())
  return f'{log.path}: {kept} of {len(log.records)} dialogues kept'


def _opening(target: LanguageModel) -> list[int]:
  """Returns the tokens of the chat template before a user's turn."""
  if target.tokenizer is None:
    raise UserError('target: has no tokenizer')
  text = target.tokenizer.chat([{'role': 'user', 'content': _MARK}])
  before, mark, _ = text.partition(_MARK)
  if not mark:
    raise UserError("target: its chat template omits the user's turn")
  return target.tokenizer.encode(before, bos=False)


def _questions(config: DialoguesConfig, tokenizer: Tokenizer) -> list[str]:
  """Returns the user's turns of the file that are short enough."""
  texts = [prompt.text.strip() for prompt in prompts.read(config.questions)]
  tokens = lambda text: len(tokenizer.encode(text, bos=False))
  short = [text for text in texts if tokens(text) <= config.user_tokens]
  if not short:
    raise UserError(
      f'questions {config.questions}: all of its {len(texts)} lines have more '
      f'than user_tokens={config.user_tokens} tokens'
    )
  return short


def _dialogues(
  config: DialoguesConfig,
  engine: Engine,
  opening: Sequence[int],
  questions: Sequence[str] | None,
  seeds: Sequence[int],
) -> Iterator[Dialogue]:
  """Yields a dialogue for each seed, in the order in which they end."""
  tokenizer = engine.model.tokenizer
  waiting, seed_of, question_of = iter(seeds), {}, {}

  def begin(count: int) -> None:
    for seed in itertools.islice(waiting, count):
      if questions is not None:
        answer(questions[seed - config.seed], seed)
        continue
      request = engine.submit(
        opening,
        sampling=config.user_sampling,
        max_new_tokens=config.user_tokens,
        seed=seed,
      )
      seed_of[request] = seed

  def answer(question: str, seed: int) -> None:
    messages = [{'role': 'user', 'content': question}]
    prompt = tokenizer.encode(tokenizer.chat(messages), bos=False)
    request = engine.submit(
      prompt,
      sampling=config.answer_sampling,
      # Text that is encoded again may have some more tokens.
      max_new_tokens=min(config.answer_tokens, engine.max_length - len(prompt)),
      seed=seed,
    )
    seed_of[request], question_of[request] = seed, messages

  begin(2 * config.slots)  # a turn waits for each slot
  for completion in engine.results():
    seed = seed_of.pop(completion.id)
    messages = question_of.pop(completion.id, None)
    text = completion.text.strip()
    dropped = _reason_to_drop(completion, is_answer=messages is not None)
    if messages is None and not dropped:
      answer(text, seed)
      continue
    if not dropped:
      is_cut = completion.finish_reason == 'length'
      cut = {'cut': True} if is_cut else {}
      messages = [*messages, {'role': 'assistant', 'content': text, **cut}]
    yield Dialogue(
      seed=seed, messages=[] if dropped else messages, dropped=dropped
    )
    begin(1)


def _reason_to_drop(completion: Completion, is_answer: bool) -> str:
  """Returns why a dialogue with this turn is dropped, or ''."""
  tokens = completion.tokens
  grams = list(zip(*(tokens[i:] for i in range(_GRAM)), strict=False))
  who = 'answer' if is_answer else 'user'
  is_short = len(tokens) < _MIN_TOKENS
  if not is_answer:
    is_short = len(completion.text.strip()) < _MIN_CHARACTERS
  if is_short:
    return f'{who}: short'
  if not is_answer and completion.finish_reason != 'stop':
    return f'{who}: long'
  if len(grams) > _MIN_GRAMS and len(set(grams)) < _MIN_DISTINCT * len(grams):
    return f'{who}: repeats itself'
  return ''
