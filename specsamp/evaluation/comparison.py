"""Experiments: many ways to draft and verify, on the same prompts."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import tabulate

from specsamp import verification
from specsamp.data import prompts
from specsamp.data.prompts import Prompt
from specsamp.decoding.generate import check
from specsamp.drafting import model_drafter
from specsamp.errors import UserError
from specsamp.evaluation import (
  demo,
  metrics,
  parts,
  plots,
  report,
  runner,
  tree_search,
)
from specsamp.evaluation.runner import Method
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

_PLOTS = {
  'by_method': plots.by_method,
  'by_candidates': plots.by_candidates,
  'by_budget': plots.by_budget,
}


@dataclasses.dataclass(frozen=True)
class MethodConfig:
  """One way to draft and to verify.

  Attributes:
    name: rows of one name and temperature are alternatives; the best of them
      are named in the report.
    branching: candidates of a node at each depth; all 1 is a chain.
    temperature: of both laws.
    verifier: a name of `specsamp.verification.make`.
    law: how candidates are chosen, as of `model_drafter`.
    tree_attention: as of `specsamp.generate`.
    paper: what the paper reports: speedup / block efficiency.
  """

  name: str
  branching: tuple[int, ...]
  temperature: float
  verifier: str = 'token'
  law: str = 'iid'
  tree_attention: bool = True
  paper: str = ''


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
    prompts: a JSON list of texts; '' takes held-out functions.
    num_prompts: how many.
    max_prompt_tokens: in each of them.
    max_new_tokens: in each completion.
    seed: prompt i draws from `seed + i`.
    plot: by_method, by_candidates or by_budget.
    passes: whether to measure what the best tree's pass costs beside the best
      chain's.
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
    # A JSON list of texts; '' takes held-out functions.
    prompts='',
    num_prompts=1 if smoke else 16,
    max_prompt_tokens=96 if smoke else 128,
    max_new_tokens=16 if smoke else 128,
    seed=0,
    passes=False,
    search=False,
    note='',
  )


def prepare(values: dict[str, Any]) -> 'Job':
  """Loads and checks all that a comparison needs; writes nothing.

  Args:
    values: a `ComparisonConfig` as plain values.

  Raises:
    UserError: a file or value that does not fit.
  """
  try:
    methods = tuple(
      MethodConfig(**(method | {'branching': tuple(method['branching'])}))
      for method in values.get('methods', ())
    )
    config = ComparisonConfig(**(values | {'methods': methods}))
  except (TypeError, KeyError) as error:  # keys of some other kind of config
    raise UserError(f'config: {error}') from None
  target, draft = demo.load_models(config.target, config.draft)
  if config.prompts:
    texts = prompts.read_json(
      config.prompts,
      target.tokenizer,
      config.num_prompts,
      config.max_prompt_tokens,
    )
  else:
    texts = prompts.held_out(
      target.tokenizer, config.num_prompts, config.max_prompt_tokens
    )
  runs = [_method(config, method, target, draft) for method in methods]
  if len({tuple(run.fields.values()) for run in runs}) < len(runs):
    raise UserError('methods: two of them are the same')
  for run in runs:
    check(
      target,
      [text.text for text in texts],
      drafter=run.drafter,
      verifier=run.verifier,
      sampling=SamplingParams(temperature=run.temperature, top_p=run.top_p),
      max_new_tokens=config.max_new_tokens,
    )
  return Job(config, target, draft, runs, texts)


def _method(config, method: MethodConfig, target, draft) -> Method:
  tree = runner.token_tree(method.branching, target)
  return Method(
    name=method.name,
    drafter=model_drafter(draft, tree, method.law),
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
  """

  config: ComparisonConfig
  target: LanguageModel
  draft: LanguageModel
  methods: list[Method]
  prompts: list[Prompt]

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
          seed=config.seed,
          path=workdir / f'search-{temperature:g}.json',
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
      task=pathlib.Path(config.prompts).stem or 'held-out Python functions',
    )
    rows = sorted(
      metrics.summarize(lines), key=lambda row: temperatures.index(
        row['temperature']
      )
    )  # fmt: skip
    papers = {
      (m.name, m.temperature, runner.tree_name(run.tree)): m.paper
      for m, run in zip(config.methods, self.methods, strict=True)
    }
    for row in rows:
      row['paper'] = papers.get(
        (row['method'], row['temperature'], row['branching']), ''
      )
    sections.append(_best(rows))
    costs = self._passes(rows, methods, sections) if config.passes else []
    report.write(
      workdir,
      config.title,
      rows,
      costs,
      _PLOTS[config.plot],
      f'{config.plot}.png',
      sections,
    )
    print(report.table(rows, 'simple'))
    print()
    print('\n\n'.join(sections))
    print(f'\n{report.NOTE}\n\nReport and plot: {workdir / "report.md"}')

  def _passes(self, rows, methods, sections) -> list[dict[str, Any]]:
    """Costs of the best chain and the best tree of each temperature."""
    costs, texts = [], []
    for temperature in sorted({row['temperature'] for row in rows}):
      drafted = [
        row
        for row in rows
        if row['draft_len'] and row['temperature'] == temperature
      ]
      is_chain = lambda row: row['branching'].startswith('γ')
      chains = [row for row in drafted if is_chain(row)]
      trees = [r for r in drafted if not is_chain(r) and r['tree_attention']]
      if not chains or not trees:
        continue
      chain = max(chains, key=lambda row: row['speedup'])
      tree = max(trees, key=lambda row: row['block_efficiency'])
      pair = []
      for row in (chain, tree):
        method = next(
          m
          for m in methods
          if all(m.fields[key] == row[key] for key in m.fields)
        )
        top_p = self.config.top_p_at(temperature)
        found = parts.measure(
          self.target,
          method.drafter,
          verification.make(method.verifier),
          [SamplingParams(temperature=temperature, top_p=top_p)],
          self.target.tokenizer.encode(self.prompts[0].text),
          self.config.max_new_tokens,
        )
        pair.append({'temperature': temperature, 'top_p': top_p} | found[0])
      costs += pair
      texts.append('- ' + _break_even(chain, tree, *pair))
    if texts:
      sections.append('\n'.join(['## What a larger pass costs', *texts]))
    return costs


def _best(rows: Sequence[dict[str, Any]]) -> str:
  """The best of each name and temperature, beside a chain of the same length.

  As table 2 of Yang et al. 2401.06706 has "SD (same γ)" and "SD (best γ)".
  """
  cells = []

  def add(row, which):
    cells.append(
      {
        'sampling': report.sampling_name(row),
        'method': row['method'],
        'which': which,
        'draft': row['branching'],
        'speedup': row['speedup'],
        'τ': row['block_efficiency'],
      }
    )

  groups: dict[tuple, list] = {}
  for row in rows:
    if row['draft_len']:
      key = (row['temperature'], row['method'])
      groups.setdefault(key, []).append(row)
  for (temperature, _), group in groups.items():
    fastest = max(group, key=lambda row: row['speedup'])
    add(fastest, 'fastest')
    add(max(group, key=lambda row: row['block_efficiency']), 'highest τ')
    chain = f'γ={fastest["draft_len"]}'
    for row in rows:
      if (
        fastest['branching'] != chain
        and row['branching'] == chain
        and row['temperature'] == temperature
      ):
        add(row, 'as long as the fastest above')
  table = tabulate.tabulate(
    cells, headers='keys', tablefmt='github', floatfmt='.2f'
  )
  return f'## Best of each\n\n{table}'


def _break_even(chain, tree, chain_cost, tree_cost) -> str:
  """At which cost of its pass the tree would be as fast as the chain."""
  gain = tree['block_efficiency'] / chain['block_efficiency']
  rest = tree_cost['round_ms'] - tree_cost['score_ms']
  allowed = gain * chain_cost['round_ms'] - rest
  size = tree_cost['score_ms'] / chain_cost['score_ms']
  text = (
    f'{report.sampling_name(tree)}: {tree["branching"]} ({tree["method"]}) '
    f'says {gain:.2f} times the tokens of {chain["branching"]} a round. Its '
    f'pass over {tree["nodes"]} nodes takes {tree_cost["score_ms"]:.2f} ms, '
    f'{size:.2f} times the {chain_cost["score_ms"]:.2f} ms over '
    f'{chain["nodes"]}, and the rest of its round {rest:.2f} ms. '
  )
  if allowed <= 0:
    text += (
      'Its draft alone costs more than it gains: it would be slower whatever '
      'the pass took.'
    )
  else:
    text += (
      'It is the faster one where its pass takes less than '
      f'{allowed:.2f} ms, {allowed / chain_cost["score_ms"]:.2f} times the '
      "chain's."
    )
  return text
