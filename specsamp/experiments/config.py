"""Configs of the experiments: their keys, and the argument of a config file."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import ml_collections
from jax.sharding import Mesh

from specsamp.data import chat
from specsamp.drafting import Drafter, TokenTree
from specsamp.drafting.draft import Law
from specsamp.errors import UserError, check_name, check_range, describe_unknown
from specsamp.evaluation import pairs, tasks
from specsamp.evaluation.reporting import plots
from specsamp.experiments import loading
from specsamp.experiments.methods import Branching, MethodConfig
from specsamp.language_model import LanguageModel
from specsamp.models import quantized
from specsamp.models.config import Dtype
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import schema

EMBEDDED = 'pycode'  # name of the embedded pair


class TaskPrompt(NamedTuple):
  """A prompt of a task.

  Attributes:
    task: the task.
    prompt: the prompt.
    tokens: its last tokens that fit.
  """

  task: tasks.Task
  prompt: tasks.Question
  tokens: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelsConfig:
  """A target and a draft.

  Attributes:
    target: folder or GGUF file of the target, or its name at the hub; '' is the
      embedded target.
    draft: folder or GGUF file of the draft, or its name at the hub; '' is the
      embedded draft. self is the target with weights in 8 bits, self:6 its
      first 6 layers with its LM head, the same arrays.
    weights: int8 for weights of the target in 8 bits, which is another
      distribution than that of its floats; w8a8 for activations in 8 bits too,
      which is less exact, and faster on CPUs; '' for floats.
    draft_weights: the same for the draft, and for trained drafters; '' is int8
      if the draft is self.
    mismatched_drafter: use a trained drafter although its acceptance is under a
      tenth of the one recorded after its training.
  """

  target: str = ''
  draft: str = ''
  weights: Literal['', quantized.Kind] = ''
  draft_weights: Literal['', quantized.Kind] = ''
  mismatched_drafter: bool = False

  def load_models(self, mesh: Mesh | None, dtype: str = '') -> loading.Models:
    """Loads the models; see `loading.load`."""
    return loading.load(
      self.target,
      self.draft,
      mesh,
      dtype,
      self.weights,
      self.draft_weights,
      self.mismatched_drafter,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairConfig(ModelsConfig):
  """A target and a draft, and the number and lengths of their completions.

  Attributes:
    data: folder with the published sets of prompts.
    num_prompts: prompts of each task.
    max_prompt_tokens: upper bound on the tokens of a prompt.
    max_new_tokens: upper bound on the new tokens of a completion; a task may
      have a lower bound.
    seed: seed of all draws; prompt or request i may draw from seed + i.
  """

  data: str = '../shared/data'
  num_prompts: int = 16
  max_prompt_tokens: int = 128
  max_new_tokens: int = 128
  seed: int = 0

  def __post_init__(self):
    sizes = ('num_prompts', 'max_prompt_tokens', 'max_new_tokens')
    check_range(self, *sizes, min=1, kind=int)
    largest = 2**31 - 1 - self.num_prompts
    check_range(self, 'seed', min=0, max=largest, kind=int)

  def load_prompts(self, name: str, target: LanguageModel) -> list[TaskPrompt]:
    """Returns the first turns of the tasks of a name; see `load_tasks`."""
    tokenizer = target.tokenizer
    prompts = []
    for task in self.load_tasks(name, target):
      for prompt in task.prompts:
        whole = tasks.tokens_of(tokenizer, prompt, (), chat=False)
        tokens = tasks.last(whole, self.max_prompt_tokens, tokenizer)
        prompts.append(TaskPrompt(task, prompt, tokens))
    return prompts

  def load_tasks(self, name: str, target: LanguageModel) -> list[tasks.Task]:
    """Returns the tasks of a name; prints which have too few prompts.

    Raises:
      UserError: see `tasks.load`; or a prompt and its completion do not fit the
        target's positions.
    """
    positions = target.config.max_length
    if self.max_prompt_tokens + self.max_new_tokens > positions:
      raise UserError(
        f'max_prompt_tokens: got {self.max_prompt_tokens}, with '
        f'{self.max_new_tokens} new tokens more than the {positions} positions '
        'of the target'
      )
    sizes = (self.num_prompts, self.max_prompt_tokens)
    loaded = tasks.load(name, target.tokenizer, *sizes, self.data)
    for task in loaded:
      if len(task.prompts) < self.num_prompts:
        print(
          f'{task.name}: {len(task.prompts)} of the {self.num_prompts} '
          'requested prompts, all that fit'
        )
    return loaded


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledConfig(PairConfig):
  """A pair and the sampling of its completions.

  Attributes:
    top_p: nucleus at temperatures above 0.
  """

  top_p: float = 1.0

  def check_compared(self, *names: str) -> None:
    """Raises `UserError` for values to compare that are empty or repeated."""
    for name in names:
      values = getattr(self, name)
      if not values or len(set(values)) < len(values):
        raise UserError(
          f'{name}: got {values}, expected at least one, none twice'
        )

  def check_temperatures(self, temperatures: tuple[float, ...]) -> None:
    """Raises ValueError for a temperature or nucleus out of its range."""
    for temperature in temperatures:
      SamplingParams(temperature, top_p=self.top_p).check()

  def top_p_at(self, temperature: float) -> float:
    return self.top_p if temperature else 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrafterConfig(ModelsConfig):
  """A target, a drafter and a verifier.

  Attributes:
    dtype: dtype that the target computes in; '' is that of its folder.
    drafter: '' is the draft model, none is plain decoding. medusa, hydra,
      eagle, medusa_parallel and eagle_parallel are trained on the embedded
      target. ngram, lookahead and ngram_or_draft look up tokens. mtp is the
      module of multi-token prediction in the target's folder. Other values are
      a trained drafter's folder, or a user-defined drafter, my.module:Name.
    lookup: settings of the drafters that look up.
    verifier: rule that accepts draft tokens, see docs/verifiers.md, or a
      user-defined one, my.module:Name; '' is the default of the drafter.
    draft_len: draft tokens in a round of a server, of a streamed completion and
      of your prompts.
    branching: token tree to compare as well, and for a server and your prompts:
      (4, 2, 1) has 4 candidates, 2 after each of them, and so on; in (4, (2,
      1)) the first one has 2 and the second 1. () omits it.
    law: how candidates are chosen; '' fits the drafter and the verifier.
  """

  dtype: Literal['', Dtype] = ''
  drafter: str = ''
  lookup: loading.Lookup = loading.Lookup()
  verifier: str = ''
  draft_len: int = 4
  branching: Branching = ()
  law: Literal['', Law] = ''

  def make_drafter(
    self, models: loading.Models, shape: int | TokenTree
  ) -> Drafter:
    """Returns the drafter of a draft length or a tree."""
    return models.drafter(
      self.drafter, shape, self.law, self.verifier, self.lookup
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatTemplateConfig:
  """Variables of the target's chat template.

  Attributes:
    chat_template_kwargs: variables of the chat template by name;
      --config.chat_template_kwargs.enable_thinking=false sets one.
  """

  chat_template_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)

  def check_chat_template(self, is_used: bool) -> None:
    """Raises `UserError` for variables that are reserved or not used."""
    chat.check_variables(self.chat_template_kwargs)
    if self.chat_template_kwargs and not is_used:
      raise UserError('chat_template_kwargs: needs --config.chat=true')


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig(ChatTemplateConfig, DrafterConfig, SampledConfig):
  """Prompts to complete, and the drafts to compare.

  Attributes:
    draft_lens: draft lengths to compare. A trained drafter skips those that it
      cannot draft. On CPUs the target pads large products to 4 or 8 tokens,
      which drafts of 3 and 7 tokens fill.
    dynamic_tree: token tree whose shape each draft chooses, to compare as well,
      and for your prompts: (nodes, depth, children of a node), such as (16, 6,
      4). () omits it.
    adaptive: choose in each round how deep to draft, 0 or one of draft_lens, or
      a depth of the tree; or how many nodes of a dynamic tree to verify.
    temperatures: temperatures to compare. Your prompts use the first one, and
      the completion shown before a comparison uses the last.
    other_drafters: (drafter, draft length) of drafters to compare with the
      draft model; unused with another drafter or a verifier.
    shown: number and seed of the prompt whose completion is shown before a
      comparison.
    prompts: code (held-out functions), code_edits, humaneval, xsum, alpaca,
      wmt, spec_bench, spec_bench/CATEGORY, a .json or .jsonl file of prompts,
      or a user-defined task, my.module:Name.
    chat: put your prompts as turns in the target's chat template.
    sweep_prompts: prompts that are completed with every draft length; the
      others are completed with the fastest one of each temperature.
    repeats: timings of a round and its parts, for a median.
  """

  num_prompts: int = 20
  top_p: float = 0.95
  draft_lens: tuple[int, ...] = (2, 3, 5, 7)
  dynamic_tree: tuple[int, ...] = ()
  adaptive: bool = False
  temperatures: tuple[float, ...] = (0.0, 1.0)
  other_drafters: tuple[tuple[str, int], ...] = ()
  shown: tuple[int, int] = (0, 0)
  prompts: str = 'code'
  chat: bool = False
  sweep_prompts: int = 8
  repeats: int = 11

  def __post_init__(self):
    super().__post_init__()
    if min(self.shown) < 0:
      raise UserError(f'shown: got {self.shown}, expected at least 0')
    check_range(self, 'sweep_prompts', 'repeats', min=1, kind=int)
    self.check_compared('draft_lens', 'temperatures')
    self.check_chat_template(is_used=self.chat)
    self.check_temperatures(self.temperatures)
    if self.dynamic_tree and self.branching:
      raise UserError('dynamic_tree: cannot be combined with branching')
    if self.drafter == loading.NO_DRAFTER and (
      self.branching or self.dynamic_tree or self.adaptive
    ):
      raise UserError(
        f'drafter {loading.NO_DRAFTER}: cannot be combined with branching, '
        'dynamic_tree or adaptive'
      )

  def sampling(self, temperature: float) -> SamplingParams:
    return SamplingParams(temperature, top_p=self.top_p_at(temperature))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonConfig(ChatTemplateConfig, SampledConfig):
  """Methods to compare, and the tasks to compare them on.

  Attributes:
    title: title of the report.
    methods: methods to compare, each a dict of the keys of
      `experiments.methods.MethodConfig`. The autoregressive baseline of each
      temperature is added.
    tasks: code (held-out functions), code_edits, humaneval, xsum, alpaca, wmt,
      spec_bench, spec_bench/CATEGORY, files of prompts (.json,
      .jsonl), or user-defined tasks, my.module:Name.
    chat: put prompts as turns in the target's chat template.
    samples: samples of each prompt at temperatures above 0.
    dtype: dtype that the target computes in; '' is that of its folder.
    batch_size: prompts that are answered together.
    plot: by_method, by_draft_length, by_candidates, by_budget, by_masks or
      by_sampling.
    passes: time the passes of the best trees and of the fastest chain.
    parts: time the rounds of the methods for which the paper has figures.
    bounds: measure how often any lossless verifier could accept the first draft
      token, for sampled methods.
    search: search for the best static trees first, and compare them as well.
    searched: drafter of these trees; '' is the draft model.
    search_depth: upper bound on the depth of these trees.
    note: text for the report, such as the figures of the paper.
  """

  title: str
  methods: tuple[MethodConfig, ...]
  tasks: tuple[str, ...] = ('code',)
  chat: bool = False
  samples: int = 1
  dtype: Literal['', Dtype] = ''
  batch_size: int = 1
  plot: str = 'by_method'
  passes: bool = False
  parts: bool = False
  bounds: bool = False
  search: bool = False
  searched: str = ''
  search_depth: int = 8
  note: str = ''

  def __post_init__(self):
    super().__post_init__()
    check_name('plot', self.plot, plots.PLOTS)
    self.check_chat_template(is_used=self.chat)
    for name in ('methods', 'tasks'):
      if not getattr(self, name):
        raise UserError(f'{name}: got (), expected at least one')
    names = ('samples', 'batch_size', 'search_depth')
    check_range(self, *names, min=1, max=10_000, kind=int)


class Size(NamedTuple):
  """The models and the size of an experiment, from the argument of its config.

  Attributes:
    pair: name of published models, a key of `pairs.PAIRS` or
      `pairs.TARGETS`; '' is the embedded pair.
    name: '', `small` for published models on a few CPU cores, or `smoke` for
      the smallest size.
  """

  pair: str
  name: str

  @property
  def smoke(self) -> bool:
    return self.name == 'smoke'

  def comparison(
    self,
    num_prompts: int,
    max_prompt_tokens: int = 128,
    max_new_tokens: int = 0,
    small: Mapping[str, Any] | None = None,
    **values: Any,
  ) -> ml_collections.ConfigDict:
    """Returns the config of a comparison of these models at this size.

    Args:
      num_prompts: prompts of each task at full size; `small` has at most 8,
        `smoke` has one.
      max_prompt_tokens: bound for the embedded pair; other pairs have 1536,
        `small` has 384 and `smoke` 32.
      max_new_tokens: bound for all pairs; 0 is 128 for the embedded pair and
        512 for others. `small` has at most 64, `smoke` has 16.
      small: values of `small` that differ, among them batch_size, which is 8.
      **values: other values of a `ComparisonConfig`.
    """
    target, draft = (
      folder and f'MODELS/{folder}' for folder in pairs.folders(self.pair)
    )
    prompt, new = (1536, 512) if self.pair else (max_prompt_tokens, 128)
    bounds = {'small': (8, 384, 64), 'smoke': (1, 32, 16)}.get(self.name)
    values_at = (num_prompts, prompt, max_new_tokens or new)
    names = ('num_prompts', 'max_prompt_tokens', 'max_new_tokens')
    sizes = dict(
      zip(names, map(min, values_at, bounds or values_at), strict=True)
    )
    values |= dict(target=target, draft=draft) | sizes
    if self.pair in pairs.TARGETS:
      values |= dict(chat=True, dtype='float32')
    if self.name == 'small':
      values |= dict(batch_size=8) | dict(small or {})
    return schema.config_dict(ComparisonConfig, **values)


def parse(arg: str | None) -> Size:
  """Returns the size of an argument: a pair, `smoke`, or `PAIR,SIZE`.

  The pair is `pycode`, the embedded one, a key of `pairs.PAIRS` or
  `pairs.TARGETS`; None is the embedded pair at full size.
  """
  name, *rest = (arg or EMBEDDED).split(',')
  if name == 'smoke':
    name, rest = EMBEDDED, ['smoke', *rest]
  names = (EMBEDDED, *pairs.PAIRS, *pairs.TARGETS)
  if name not in names or rest not in ([], ['small'], ['smoke']):
    others = (
      '; with ,small for CPU cores or ,smoke for the smallest size, or smoke '
      'alone'
    )
    raise UserError(describe_unknown('argument', arg, names, others))
  return Size('' if name == EMBEDDED else name, *(rest or ['']))
