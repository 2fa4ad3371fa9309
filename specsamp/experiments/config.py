"""What a job's config holds, how it is read, and what its argument means."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from specsamp import verification
from specsamp.errors import (
  UserError,
  check_name,
  check_range,
  check_scalars,
  describe_unknown,
)
from specsamp.evaluation import pairs, tasks
from specsamp.evaluation.reporting import plots
from specsamp.experiments import loading
from specsamp.experiments.method_config import Branching, MethodConfig
from specsamp.language_model import LanguageModel
from specsamp.models.config import Dtype
from specsamp.sampling.transforms import SamplingParams


@contextlib.contextmanager
def reading() -> Iterator[None]:
  """Has a mistake in plain values end as a `UserError`."""
  try:
    yield
  except (TypeError, KeyError) as error:  # keys of some other kind of config
    raise UserError(f'config: {error}') from None


def with_tuples(values: dict[str, Any]) -> dict[str, Any]:
  """Plain values with tuples in place of lists."""
  return {
    name: tuple(value) if isinstance(value, list | tuple) else value
    for name, value in values.items()
  }


def check_dtype(name: str) -> None:
  """Raises `UserError` if it is neither '' nor a dtype of models."""
  if name:
    check_name('dtype', name, get_args(Dtype))


class Asked(NamedTuple):
  """A prompt of a task, and its tokens: the last ones that fit."""

  task: tasks.Task
  prompt: tasks.Question
  tokens: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairConfig:
  """A target, a draft, and how much of what they decode.

  Attributes:
    target: folder of the target; '' is the embedded pair's.
    draft: folder of the draft; '' is the embedded pair's.
    data: folder with the published sets of prompts.
    num_prompts: of each task.
    max_prompt_tokens: in each of them.
    max_new_tokens: in each answer, if its task has no bound below it.
    seed: of all draws; prompt i of a user's own draws from `seed + i`.
  """

  target: str
  draft: str
  data: str
  num_prompts: int
  max_prompt_tokens: int
  max_new_tokens: int
  seed: int

  def __post_init__(self):
    sizes = ('num_prompts', 'max_prompt_tokens', 'max_new_tokens')
    check_range(self, *sizes, min=1, kind=int)
    # A prompt draws from the seed and its number.
    most = 2**31 - 1 - self.num_prompts
    check_range(self, 'seed', min=0, max=most, kind=int)

  def longest_prompt(self, target: LanguageModel) -> list[int]:
    """As many tokens as prompts may have, to check the config with.

    Raises:
      UserError: more than the target has positions.
    """
    most = target.config.max_length
    if self.max_prompt_tokens > most:
      raise UserError(
        f'max_prompt_tokens: got {self.max_prompt_tokens}, expected at most '
        f'the {most} positions of the target'
      )
    return [0] * self.max_prompt_tokens

  def load_prompts(self, name: str, target: LanguageModel) -> list[Asked]:
    """The first turns of these tasks, the last tokens of each that fit.

    Raises:
      UserError: see `tasks.load`, or no room for them with their answers.
    """
    most = target.config.max_length
    if self.max_prompt_tokens + self.max_new_tokens > most:
      raise UserError(
        f'max_prompt_tokens: got {self.max_prompt_tokens}, with '
        f'{self.max_new_tokens} new ones more than the {most} positions of the '
        'target'
      )
    tokenizer = target.tokenizer
    return [
      Asked(
        task,
        prompt,
        tasks.last(
          tasks.tokens_of(tokenizer, prompt, (), chat=False),
          self.max_prompt_tokens,
          tokenizer,
        ),
      )
      for task in self.load_tasks(name, target)
      for prompt in task.prompts
    ]

  def load_tasks(self, name: str, target: LanguageModel) -> list[tasks.Task]:
    """The tasks of a name; prints where one has fewer prompts than asked.

    Raises:
      UserError: see `tasks.load`.
    """
    sizes = (self.num_prompts, self.max_prompt_tokens)
    found = tasks.load(name, target.tokenizer, *sizes, self.data)
    for task in found:
      if len(task.prompts) < self.num_prompts:
        print(
          f'{task.name}: {len(task.prompts)} of the {self.num_prompts} prompts '
          'that were asked for, all that fit'
        )
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledConfig(PairConfig):
  """And how it is sampled.

  Attributes:
    top_p: nucleus of the temperatures above 0.
  """

  top_p: float

  def check_compared(self, *names: str) -> None:
    """Raises `UserError` where one of these names none, or a value twice."""
    for name in names:
      values = getattr(self, name)
      if not values or len(set(values)) < len(values):
        raise UserError(
          f'{name}: got {values}, expected at least one, none twice'
        )

  def check_temperatures(self, temperatures: tuple[float, ...]) -> None:
    """Raises `UserError` where one of them, or the nucleus, is none."""
    check_scalars('temperatures', temperatures)
    try:
      for temperature in temperatures:
        SamplingParams(temperature, top_p=self.top_p).check()
    except ValueError as error:
      raise UserError(str(error)) from None

  def top_p_at(self, temperature: float) -> float:
    return self.top_p if temperature else 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig(SampledConfig):
  """What to decode and how.

  Attributes:
    dtype: that the target computes in; '' is what its folder has.
    drafter: what drafts, see `loading.Models`; '' is the draft model.
    lookup: of drafters without a model.
    verifier: a name of `specsamp.verification.make`; '' is the default one of
      each drafter, see `default_name` there.
    draft_len: of the streamed texts.
    draft_lens: draft lengths to compare; what a trained drafter is not deep
      enough for is left out.
    branching: see `TokenTree.branching`; a tree in place of `draft_len`, and
      one more draft to compare. Empty is none.
    dynamic_tree: (nodes, depth, children), see `DynamicTree.of`; likewise.
    adaptive: whether how deep a round drafts is chosen in each, from 0 and
      `draft_lens`, or the depths of the tree: in place of `draft_len`, and one
      more draft to compare.
    law: how candidates are chosen, see `model_drafter`; '' is what the drafter
      and the verifier need.
    temperatures: to compare; the first serves a user's prompts, the last the
      text that is shown before a comparison.
    other_drafters: (drafter, draft length) of further drafters to compare with
      the draft model; not used with another `drafter` or a `verifier`.
    shown: prompt, by its number, and seed of the text that is shown before a
      comparison.
    prompts: what to complete, see `tasks.load`.
    chat: whether a user's own prompts are turns of a conversation, each put
      in the target's chat template.
    sweep_prompts: so many prompts are completed with every draft length, the
      others with the fastest one of each temperature.
    repeats: how often a round and its parts are timed, for a median.
  """

  drafter: str
  lookup: loading.Lookup
  verifier: str
  draft_len: int
  draft_lens: tuple[int, ...]
  branching: Branching
  dynamic_tree: tuple[int, ...]
  adaptive: bool
  law: str
  temperatures: tuple[float, ...]
  prompts: str
  chat: bool
  sweep_prompts: int
  repeats: int
  dtype: str = ''
  other_drafters: tuple[tuple[str, int], ...] = ()
  shown: tuple[int, int] = (0, 0)

  def __post_init__(self):
    super().__post_init__()
    if len(self.shown) != 2 or any(
      type(n) is not int or n < 0 for n in self.shown
    ):
      raise UserError(
        f'shown: got {self.shown!r}, expected the number of a prompt and a seed'
      )
    for other in self.other_drafters:
      if type(other) is not tuple or len(other) != 2:
        raise UserError(
          f'other_drafters: got {other!r}, expected (drafter, draft length)'
        )
    others = [n for _, n in self.other_drafters]
    for n in (self.draft_len, *self.draft_lens, *others):
      if type(n) is not int:
        raise UserError(f'draft length: got {n!r}, expected an integer')
    check_range(self, 'sweep_prompts', 'repeats', min=1, kind=int)
    self.check_compared('draft_lens', 'temperatures')
    self.check_temperatures(self.temperatures)
    if self.dynamic_tree and (self.branching or self.adaptive):
      raise UserError(
        'dynamic_tree: got one beside branching or adaptive, which are other '
        'ways to choose what is drafted'
      )
    if self.drafter == loading.NO_DRAFTER and (
      self.branching or self.dynamic_tree or self.adaptive
    ):
      raise UserError(
        f'drafter {loading.NO_DRAFTER}: got branching, dynamic_tree or '
        'adaptive, which are for drafters that draft'
      )
    check_dtype(self.dtype)
    if self.verifier:
      verification.make(self.verifier)

  @classmethod
  def read(cls, values: dict[str, Any]) -> 'DecodeConfig':
    """The run of plain values."""
    plain = with_tuples(values)
    with reading():
      lookup = loading.Lookup(**plain.get('lookup', {}))
      return cls(**plain | {'lookup': lookup})

  def sampling(self, temperature: float) -> SamplingParams:
    return SamplingParams(temperature, top_p=self.top_p_at(temperature))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonConfig(SampledConfig):
  """What to compare, and on what.

  Attributes:
    title: of the report.
    methods: what to compare. The autoregressive baseline of each temperature
      is added.
    tasks: what to decode, names of `tasks.load`.
    chat: whether prompts are turns in the target's chat template.
    samples: of each prompt, at temperatures above 0.
    dtype: that the target computes in; '' is what its folder has. The draft
      computes in its own.
    batch_size: so many prompts are answered together.
    shuffled: whether these are of all tasks and temperatures, else of one.
    plot: by_method, by_draft_length, by_candidates, by_budget, by_masks or
      by_sampling.
    passes: whether to measure what the best trees' passes cost beside that of
      the fastest chain.
    parts: whether to measure what rounds cost of which the paper has figures.
    bounds: whether to measure, beside how often sampled methods accept a first
      token, the most that any lossless rule could.
    search: whether to search the best static trees first; see
      `experiments.measured_trees`.
    searched: the drafter whose trees these are; '' is the draft model.
    search_depth: of these trees, at most.
    note: for the report, such as what the paper reports.
  """

  title: str
  methods: tuple[MethodConfig, ...]
  tasks: tuple[str, ...]
  chat: bool
  samples: int
  plot: str
  passes: bool
  parts: bool
  bounds: bool
  search: bool
  note: str
  dtype: str = ''
  batch_size: int = 1
  shuffled: bool = False
  searched: str = ''
  search_depth: int = 8

  def __post_init__(self):
    super().__post_init__()
    check_name('plot', self.plot, plots.PLOTS)
    check_dtype(self.dtype)
    for name in ('methods', 'tasks'):
      if not getattr(self, name):
        raise UserError(f'{name}: got none, expected at least one')
    for name in ('samples', 'batch_size', 'search_depth'):
      check_range(self, name, min=1, max=10_000, kind=int)

  @classmethod
  def read(cls, values: dict[str, Any]) -> 'ComparisonConfig':
    """The comparison of plain values."""
    with reading():
      methods = tuple(map(MethodConfig.read, values.get('methods', ())))
      names = tuple(values.get('tasks', ()))
      return cls(**values | {'methods': methods, 'tasks': names})


class Size(NamedTuple):
  """What a config's argument means.

  Attributes:
    pair: names of published models, a key of `pairs.PAIRS`; '' is the embedded
      pair.
    smoke: the smallest size.
  """

  pair: str
  smoke: bool

  @property
  def target(self) -> str:
    """The folder of the pair's target; '' is the embedded one."""
    return self.pair and f'MODELS/{pairs.folders(self.pair)[0]}'

  @property
  def draft(self) -> str:
    """The folder of the pair's draft; '' is the embedded one."""
    return self.pair and f'MODELS/{pairs.folders(self.pair)[1]}'


EMBEDDED = 'pycode'


def parse(arg: str | None) -> Size:
  """Reads `pycode`, the name of a pair, `smoke`, or one and smoke.

  Raises:
    UserError: anything else.
  """
  name, *rest = (arg or EMBEDDED).split(',')
  if name == 'smoke':
    name, rest = EMBEDDED, ['smoke', *rest]
  names = (EMBEDDED, *pairs.PAIRS)
  if name not in names or rest not in ([], ['smoke']):
    others = ', with ,smoke behind it for the smallest size, or smoke alone'
    raise UserError(describe_unknown('argument', arg, names, others))
  return Size('' if name == EMBEDDED else name, bool(rest))
