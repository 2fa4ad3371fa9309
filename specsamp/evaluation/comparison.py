"""Experiments: many ways to draft and verify, on the same prompts."""

import dataclasses
import pathlib
import re
from typing import Any, NamedTuple

import tqdm
from jax.sharding import Mesh

from specsamp import verification
from specsamp.data.prompts import Prompt
from specsamp.decoding.generate import check
from specsamp.drafting import model_drafter
from specsamp.errors import UserError
from specsamp.evaluation import (
  findings,
  loading,
  metrics,
  parts,
  plots,
  report,
  runner,
  tasks,
  tree_search,
)
from specsamp.evaluation.runner import Method
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import distributed

_PLOTS = {
  'by_method': plots.by_method,
  'by_candidates': plots.by_candidates,
  'by_budget': plots.by_budget,
  'by_masks': plots.by_masks,
}


@dataclasses.dataclass(frozen=True)
class MethodConfig:
  """One way to draft and to verify.

  Attributes:
    name: rows of one name and temperature are alternatives; the best of them
      are named in the report. Not `autoregressive`, the baseline's.
    branching: candidates of a node at each depth; all 1 is a chain.
    temperature: of both laws.
    verifier: a name of `specsamp.verification.make`.
    law: how candidates are chosen, as of `model_drafter`.
    drafter: what drafts, as of `loading.Models`; '' is the draft model.
    lookup: of drafters without a model.
    tree_attention: as of `specsamp.generate`.
    paper: what the paper reports: speedup / block efficiency, or ''.
  """

  name: str
  branching: tuple[int, ...]
  temperature: float
  verifier: str = 'token'
  law: str = 'iid'
  drafter: str = ''
  lookup: loading.Lookup = loading.Lookup()
  tree_attention: bool = True
  paper: str = ''

  def __post_init__(self):
    if self.paper and not re.fullmatch(r'[\d.]+ / [\d.]+', self.paper):
      raise UserError(
        f'paper: got {self.paper!r}, expected speedup / block efficiency, such '
        "as '1.92 / 2.27'"
      )


@dataclasses.dataclass(frozen=True)
class ComparisonConfig:
  """What to compare, and on what.

  Attributes:
    title: of the report.
    target: folder of the target; '' is the embedded pair's.
    draft: folder of the draft; '' is the embedded pair's.
    methods: of `MethodConfig`, as plain values. The autoregressive baseline of
      each temperature is added.
    top_p: nucleus of the temperatures above 0.
    prompts: what to complete, as of `tasks.load`; '' is held-out functions.
    num_prompts: how many.
    max_prompt_tokens: in each of them.
    max_new_tokens: in each completion.
    seed: prompt i draws from `seed + i`.
    plot: by_method, by_candidates, by_budget or by_masks.
    passes: whether to measure what the best trees' passes cost beside that of
      the fastest chain.
    parts: whether to measure what rounds cost of which the paper has figures.
    search: whether to search the best static trees first, of `tree_search`.
    note: for the report, such as what the paper reports.
  """

  title: str
  target: str
  draft: str
  methods: tuple[MethodConfig, ...]
  top_p: float
  prompts: str
  num_prompts: int
  max_prompt_tokens: int
  max_new_tokens: int
  seed: int
  plot: str
  passes: bool
  parts: bool
  search: bool
  note: str

  def __post_init__(self):
    runner.check_sizes(self)
    if self.plot not in _PLOTS:
      raise UserError(
        f'plot: got {self.plot!r}, expected one of {", ".join(_PLOTS)}'
      )
    if not self.methods:
      raise UserError('methods: got none, expected at least one')

  def top_p_at(self, temperature: float) -> float:
    return self.top_p if temperature else 1.0


def is_smoke(arg: str | None) -> bool:
  """Whether a config is asked for in its smallest size.

  Raises:
    ValueError: an argument other than smoke.
  """
  if arg not in (None, 'smoke'):
    raise ValueError(f'expected smoke or nothing, got {arg!r}')
  return arg == 'smoke'


def defaults(smoke: bool) -> dict[str, Any]:
  """What comparisons have in common, as plain values.

  Args:
    smoke: the smallest size.
  """
  return dict(
    # Folders of models for `specsamp.load`; '' is the embedded pair's.
    target='',
    draft='',
    top_p=1.0,  # of the temperatures above 0
    # '' is held-out functions; code_edits, or a JSON list of texts.
    prompts='',
    num_prompts=1 if smoke else 16,
    max_prompt_tokens=96 if smoke else 128,
    max_new_tokens=16 if smoke else 128,
    seed=0,
    passes=False,
    parts=False,
    search=False,
    note='',
  )


def prepare(values: dict[str, Any], mesh: Mesh | None = None) -> 'Job':
  """Loads and checks all that a comparison needs; writes nothing.

  Args:
    values: a `ComparisonConfig` as plain values.
    mesh: where to decode; None is one device.

  Raises:
    UserError: a file or value that does not fit.
  """
  try:
    methods = tuple(
      MethodConfig(
        **method
        | {
          'branching': tuple(method['branching']),
          'lookup': loading.Lookup(**method.get('lookup', {})),
        }
      )
      for method in values.get('methods', ())
    )
    config = ComparisonConfig(**(values | {'methods': methods}))
  except (TypeError, KeyError) as error:  # keys of some other kind of config
    raise UserError(f'config: {error}') from None
  models = loading.load(config.target, config.draft, mesh)
  target, draft = models.target, models.draft
  task, texts = tasks.load(
    config.prompts,
    target.tokenizer,
    config.num_prompts,
    config.max_prompt_tokens,
  )
  runs = [_method(config, method, models) for method in methods]
  runner.check_methods(runs)
  checked = [(run, run.drafter) for run in runs]
  if config.search:  # its widest and its largest tree
    stars = (tree_search.CANDIDATES, tree_search.SIZES[-1] - 1)
    checked += [
      (
        Method('', None, 'multi_candidate', 1.0, config.top_p),
        model_drafter(draft, runner.token_tree((star,), target)),
      )
      for star in stars
    ]
  for run, drafter in checked:
    check(
      target,
      [text.text for text in texts],
      drafter=drafter,
      verifier=run.verifier,
      sampling=SamplingParams(temperature=run.temperature, top_p=run.top_p),
      max_new_tokens=config.max_new_tokens,
    )
  return Job(config, target, draft, runs, texts, task)


def _of_row(row: dict[str, Any], methods) -> Method:
  """The method of a row of a report."""
  return next(m for m in methods if m.fields.items() <= row.items())


def _method(config, method: MethodConfig, models: loading.Models) -> Method:
  tree = runner.token_tree(method.branching, models.target)
  return Method(
    name=method.name,
    drafter=models.drafter(
      method.drafter,
      tree,
      method.law,
      coupled=method.verifier == 'gumbel' and method.law == 'deterministic',
      lookup=method.lookup,
    ),
    verifier=method.verifier,
    temperature=method.temperature,
    top_p=config.top_p_at(method.temperature),
    tree_attention=method.tree_attention,
  )


class Job(NamedTuple):
  """A checked comparison.

  Attributes:
    config: what was asked for.
    target: the target.
    draft: the draft model.
    methods: in the order of the config's.
    prompts: what to complete.
    task: what they are called.
  """

  config: ComparisonConfig
  target: LanguageModel
  draft: LanguageModel
  methods: list[Method]
  prompts: list[Prompt]
  task: str

  def run(self, workdir: pathlib.Path) -> None:
    """Writes metrics.jsonl, summary.json, report.md and a plot.

    A run that was cut off goes on where it was.
    """
    config, methods = self.config, list(self.methods)
    sections = [config.note] if config.note else []
    temperatures = sorted({method.temperature for method in methods})
    if config.search:
      for temperature in temperatures:
        found = tree_search.search(
          self.target,
          self.draft,
          self.prompts,
          SamplingParams(temperature, top_p=config.top_p_at(temperature)),
          max_new_tokens=config.max_new_tokens,
          seed=config.seed,
          folder=workdir,
        )
        sections.append(found.text)
        methods += [
          Method(
            'best static tree',
            model_drafter(self.draft, tree, 'without_replacement'),
            'multi_candidate',
            temperature,
            config.top_p_at(temperature),
          )
          for tree in found.trees
        ]
    baselines = [
      Method('autoregressive', None, 'token', t, config.top_p_at(t))
      for t in temperatures
    ]
    lines = runner.compare(
      self.target,
      [*baselines, *methods],
      self.prompts,
      max_new_tokens=config.max_new_tokens,
      seed=config.seed,
      path=workdir / 'metrics.jsonl',
      task=self.task,
    )
    rows = sorted(
      metrics.summarize(lines), key=lambda row: temperatures.index(
        row['temperature']
      )
    )  # fmt: skip
    for row in rows:
      row['paper'] = ''.join(
        method.paper
        for method, run in zip(config.methods, self.methods, strict=True)
        if run.fields.items() <= row.items()
      )
    if any(len(group) > 1 for group in findings.alternatives(rows).values()):
      sections.append(findings.best(rows))
    costs = []

    def write():
      report.write(
        workdir,
        config.title,
        rows,
        costs,
        _PLOTS[config.plot],
        f'{config.plot}.png',
        sections,
      )

    write()
    if config.parts:  # minutes, in which what was decoded can be read
      costs = self._parts(rows, methods)
      sections.append(findings.at_paper_cost(rows, costs))
      # Of a round that may have no draft there are no parts to tell.
      costs = [cost for cost in costs if cost['score_ms']]
      write()
    if config.passes:
      costs += self._passes(rows, methods, sections)
      write()
    print(report.table(rows, 'simple'))
    print()
    print('\n\n'.join(sections))
    print(f'\n{report.note(rows)}\n\nReport and plot: {workdir / "report.md"}')

  def _parts(self, rows, methods) -> list[dict[str, Any]]:
    """Rows of which the paper has figures, with what their rounds cost; None
    for the parts of rounds that may have no draft."""
    chosen = [row for row in rows if row['paper']]
    return [
      row | self._cost(row, methods) | {'decode_round_ms': row['round_ms']}
      for row in tqdm.tqdm(
        chosen, 'timing rounds', disable=not distributed.is_first()
      )
    ]

  def _passes(self, rows, methods, sections) -> list[dict[str, Any]]:
    """Costs of the fastest chain, and of the fastest tree and that of the
    highest τ, at each temperature."""
    costs, texts = [], []
    temperatures = sorted({row['temperature'] for row in rows})
    for temperature in tqdm.tqdm(
      temperatures, 'timing passes', disable=not distributed.is_first()
    ):
      drafted = [
        row
        for row in rows
        if row['draft_len']
        and row['temperature'] == temperature
        and not _of_row(row, methods).drafter.may_be_empty
      ]
      is_chain = lambda row: row['branching'].startswith('γ')
      chains = [row for row in drafted if is_chain(row)]
      trees = [r for r in drafted if not is_chain(r) and r['tree_attention']]
      if not chains or not trees:
        continue
      chain = max(chains, key=lambda row: row['speedup'])
      chain_cost = self._cost(chain, methods)
      costs.append(chain_cost)
      best = [
        max(trees, key=lambda row, key=key: row[key])
        for key in ('speedup', 'block_efficiency')
      ]
      for tree in best[:1] if best[0] is best[1] else best:
        costs.append(self._cost(tree, methods))
        text = findings.break_even(chain, tree, chain_cost, costs[-1])
        texts.append(f'- {text}')
    if texts:
      sections.append('\n'.join(['## What a larger pass costs', *texts]))
    return costs

  def _cost(self, row, methods) -> dict[str, Any]:
    """`parts.measure` of the method of a row."""
    method = _of_row(row, methods)
    if method.drafter.may_be_empty:
      return {'draft_ms': None, 'score_ms': None}
    law = {'temperature': method.temperature, 'top_p': method.top_p}
    (found,) = parts.measure(
      self.target,
      method.drafter,
      verification.make(method.verifier),
      [SamplingParams(**law)],
      self.target.tokenizer.encode(self.prompts[0].text),
      self.config.max_new_tokens,
    )
    return law | found
