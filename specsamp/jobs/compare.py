"""Experiments: many ways to draft and verify, on the same prompts."""

import pathlib
from typing import Any, NamedTuple

import tqdm
from jax.sharding import Mesh

from specsamp import verification
from specsamp.decoding.request import Request
from specsamp.drafting import model_drafter
from specsamp.errors import UserError
from specsamp.evaluation import metrics, runner, tasks, timing
from specsamp.evaluation.losslessness import permutation_tests, scores
from specsamp.evaluation.reporting import paper_figures, plots, report
from specsamp.evaluation.runner import Method
from specsamp.jobs import loading, measured_trees
from specsamp.jobs.config import ComparisonConfig, MethodConfig
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import distributed


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
    names = tuple(values.get('tasks', ()))
    config = ComparisonConfig(**(values | {'methods': methods, 'tasks': names}))
  except (TypeError, KeyError) as error:  # keys of some other kind of config
    raise UserError(f'config: {error}') from None
  models = loading.load(config.target, config.draft, mesh)
  target, draft = models.target, models.draft
  longest = [runner.longest_prompt(config, target)]
  found = [
    task
    for name in config.tasks
    for task in tasks.load(
      name,
      target.tokenizer,
      config.num_prompts,
      config.max_prompt_tokens,
      config.data,
    )
  ]
  names = [task.name for task in found]
  if len(set(names)) < len(names):
    raise UserError(f'tasks: got {names}, expected no task twice')
  for task in found:  # that there is a chat template, if one is asked for
    tasks.tokens_of(target.tokenizer, task.prompts[0], (), config.chat)
  runs = [_method(config, method, models) for method in methods]
  runner.check_methods(runs)
  checked = [(run, run.drafter) for run in runs]
  if config.search:  # its widest and its largest tree
    stars = (measured_trees.CANDIDATES, measured_trees.SIZES[-1] - 1)
    checked += [
      (
        Method('', None, 'multi_candidate', 1.0, config.top_p),
        model_drafter(draft, runner.token_tree((star,), target)),
      )
      for star in stars
    ]
  for run, drafter in checked:
    Request.make(
      target,
      longest,
      drafter=drafter,
      verifier=run.verifier,
      sampling=SamplingParams(temperature=run.temperature, top_p=run.top_p),
      max_new_tokens=max(
        task.new_tokens(config.max_new_tokens) for task in found
      ),
    )
  return Job(config, target, draft, runs, found)


def _of_row(row: dict[str, Any], methods) -> Method:
  """The method of a row of a report."""
  return next(m for m in methods if m.fields.items() <= row.items())


def _method(config, method: MethodConfig, models: loading.Models) -> Method:
  try:
    verification.make(method.verifier)
  except ValueError as error:
    raise UserError(str(error)) from None
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
    tasks: what to decode.
  """

  config: ComparisonConfig
  target: LanguageModel
  draft: LanguageModel
  methods: list[Method]
  tasks: list[tasks.Task]

  def run(
    self, workdir: pathlib.Path, allow_code_execution: bool = False
  ) -> None:
    """Writes metrics.jsonl, scores.jsonl, summary.json, report.md and a plot.

    A run that was cut off goes on where it was.

    Args:
      workdir: a folder.
      allow_code_execution: whether tasks may run the answers as programs.
    """
    config, methods = self.config, list(self.methods)
    sections = [config.note] if config.note else []
    temperatures = sorted({method.temperature for method in methods})
    if config.search:
      for temperature in temperatures:
        found = measured_trees.search(
          self.target,
          self.draft,
          [self._tokens(p) for p in self.tasks[0].prompts],
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
    sizes = {
      'max_prompt_tokens': config.max_prompt_tokens,
      'chat': config.chat,
    }
    lines = runner.compare(
      self.target,
      [*baselines, *methods],
      self.tasks,
      max_new_tokens=config.max_new_tokens,
      seed=config.seed,
      path=workdir / 'metrics.jsonl',
      samples=config.samples,
      **sizes,
    )
    scored = scores.score(
      self.target,
      self.tasks,
      lines,
      workdir / 'scores.jsonl',
      allow_code_execution=allow_code_execution,
      **sizes,
    )
    rows = self._rows(metrics.overall(lines, scored), temperatures)
    several = len(self.tasks) > 1
    each = self._rows(metrics.summarize(lines, scored), temperatures)
    sections += self._notes(lines, scored)
    examined = permutation_tests.examine(
      lines, scored, self.target.config.dtype
    )
    if any(
      len(group) > 1 for group in paper_figures.alternatives(rows).values()
    ):
      sections.append(paper_figures.best(rows))
    sections.append(permutation_tests.section(examined))
    costs = []

    def write():
      report.write(
        workdir,
        config.title,
        each + rows if several else rows,
        costs,
        plots.PLOTS[config.plot],
        f'{config.plot}.png',
        sections,
        {'lossless': examined},
      )

    write()
    if config.parts:  # minutes, in which what was decoded can be read
      costs = self._parts(rows, methods)
      if costs:
        sections.append(paper_figures.at_paper_cost(rows, costs))
      # Of a round that may have no draft there are no parts to tell.
      costs = [cost for cost in costs if cost['score_ms']]
      write()
    if config.passes:
      costs += self._passes(rows, methods, sections)
      write()
    if several:
      print(f'Speedup / τ:\n\n{report.by_task(each + rows, "simple")}\n')
      if any(row['scores'] for row in each):
        print(f'{report.table(each, "simple")}\n')
      print('All tasks together:\n')
    print(report.table(rows, 'simple'))
    print()
    print('\n\n'.join(sections))
    print(f'\n{report.note(rows)}\n\nReport and plot: {workdir / "report.md"}')

  def _rows(self, rows, temperatures) -> list[dict[str, Any]]:
    """In order of temperature, with what the paper reports."""
    for row in rows:
      row['paper'] = ''.join(
        method.paper_on(row['task'], alone=len(self.tasks) == 1)
        for method, run in zip(self.config.methods, self.methods, strict=True)
        if run.fields.items() <= row.items()
      )
    return sorted(rows, key=lambda row: temperatures.index(row['temperature']))

  def _notes(self, lines, scored) -> list[str]:
    """What is not as its authors have it."""
    notes = []
    for task in self.tasks:
      own = [line for line in lines if line['task'] == task.name]
      known = [scored[line['id']]['scores'] for line in own]
      if task.score and None in known:
        notes.append(
          f'{task.name}: the answers were not run, so that they have no score; '
          '--allow_code_execution runs them, confined.'
        )
      turns = {
        (line['prompt'], turn): is_cut
        for line in own
        for turn, is_cut in enumerate(line['cut'])
      }
      if any(turns.values()):
        most = self.config.max_prompt_tokens
        notes.append(
          f'{task.name}: {sum(turns.values())} of {len(turns)} turns follow '
          f'more than {most} tokens and see the last {most} of them.'
        )
    return notes

  def _parts(self, rows, methods) -> list[dict[str, Any]]:
    """Rows of which the paper has figures, with what their rounds cost; None
    for the parts of rounds that may have no draft."""
    chosen = [row for row in rows if row['paper']]
    return [
      row
      | self._cost(row, rows, methods)
      | {'decode_round_ms': row['round_ms']}
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
        and not _of_row(row, methods).drafter.may_draft_nothing
      ]
      is_chain = lambda row: row['branching'].startswith('γ')
      chains = [row for row in drafted if is_chain(row)]
      trees = [r for r in drafted if not is_chain(r) and r['tree_attention']]
      if not chains or not trees:
        continue
      chain = max(chains, key=lambda row: row['speedup'])
      chain_cost = self._cost(chain, rows, methods)
      costs.append(chain_cost)
      best = [
        max(trees, key=lambda row, key=key: row[key])
        for key in ('speedup', 'block_efficiency')
      ]
      for tree in best[:1] if best[0] is best[1] else best:
        costs.append(self._cost(tree, rows, methods))
        text = paper_figures.break_even(chain, tree, chain_cost, costs[-1])
        texts.append(f'- {text}')
    if texts:
      sections.append('\n'.join(['## What a larger pass costs', *texts]))
    return costs

  def _tokens(self, prompt: tasks.Question) -> list[int]:
    """The tokens that a prompt's first answer follows."""
    tokenizer = self.target.tokenizer
    whole = tasks.tokens_of(tokenizer, prompt, (), self.config.chat)
    return tasks.last(whole, self.config.max_prompt_tokens, tokenizer)

  def _cost(self, row, rows, methods) -> dict[str, Any]:
    """`parts.measure` of the method of a row, and what its parts allow."""
    method = _of_row(row, methods)
    if method.drafter.may_draft_nothing:
      return {'draft_ms': None, 'score_ms': None}
    step_ms = paper_figures.baseline(row, rows)['round_ms']
    sampling = {'temperature': method.temperature, 'top_p': method.top_p}
    (found,) = timing.measure(
      self.target,
      method.drafter,
      verification.make(method.verifier),
      [SamplingParams(**sampling)],
      self._tokens(self.tasks[0].prompts[0]),
      self.config.max_new_tokens,
    )
    ideal = step_ms / (found['draft_ms'] + found['score_ms'])
    ideal *= row['block_efficiency']
    measured = {'speedup': row['speedup'], 'ideal_speedup': ideal}
    return sampling | found | measured
