"""Runs the comparisons of all papers, and writes one summary."""

import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections
from jax.sharding import Mesh

from specsamp.evaluation.metrics import ALL
from specsamp.evaluation.reporting.report import Report, Table
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.experiments import compare
from specsamp.experiments.config import ComparisonConfig
from specsamp.utils import files, progress, schema

DONE = 'done.jsonl'
SUMMARY = 'papers.md'
_NOTE = (
  'Minutes: of the call that finished the experiment. Fastest: over '
  'autoregressive sampling of the same target, among lossless methods. '
  'Flagged: methods whose texts differ from those of the target alone, which '
  'occurs in one of 100 reports of lossless methods.'
)
_DATA = ComparisonConfig.data  # the default
_BAR = '{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}{postfix}]'


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
  """An experiment of the papers.

  Attributes:
    name: name of its config below `configs/papers`, and of its folder.
    minutes: minutes that it should take, to estimate the remaining time.
    arg: argument of the config.
  """

  name: str
  minutes: float
  arg: str = ''

  @property
  def path(self) -> str:
    argument = self.arg and f':{self.arg}'
    return f'configs/papers/{self.name}.py{argument}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class PapersConfig:
  """Experiments of the papers, to run one after another.

  Attributes:
    title: title of the summary.
    data: folder with the published sets of prompts.
    experiments: experiments, each a dict of the keys of `ExperimentConfig`.
    note: text for the summary, such as a skipped experiment.
  """

  title: str
  data: str = _DATA
  experiments: tuple[ExperimentConfig, ...] = ()
  note: str = ''


@dataclasses.dataclass(frozen=True)
class _Done:
  """A finished experiment: a line of done.jsonl, with a hash of its config."""

  name: str
  config: str
  seconds: float


def run(
  config: ml_collections.ConfigDict,
  path: str,
  load_config: Callable[[str], Any],
  command: Callable[[str, Sequence[str]], str],
  make_workdir: Callable[[str, Any], pathlib.Path],
  mesh: Mesh | None = None,
  allow_code_execution: bool = False,
) -> None:
  """Runs each experiment in a separate folder, and writes the summary.

  Finished experiments are skipped, and an interrupted one resumes.

  Args:
    config: a `PapersConfig` such as that of `configs/papers/all.py`.
    path: folder of all experiments.
    load_config: (FILE or FILE:ARGUMENT) -> its config.
    command: (launcher, arguments) -> command that calls the launcher.
    make_workdir: (path, config) -> the folder of a run that writes there.
    mesh: mesh to decode on; None is one device.
    allow_code_execution: see `compare.Comparison.run`.

  Raises:
    UserError: a config does not exist or is invalid.
  """
  papers = schema.read(PapersConfig, config.to_dict())
  configs = load_configs(papers, load_config)
  names = list(configs)
  values = {name: config.to_dict() for name, config in configs.items()}
  digests = {name: _digest(values[name]) for name in names}
  folder = make_workdir(path, config)
  log = RunLog(
    folder / DONE,
    _Done,
    lambda done: done.name,
    lambda done: (
      digests.get(done.name) == done.config
      and (folder / done.name / 'report.md').exists()
    ),
  )
  todo = [each for each in papers.experiments if each.name not in log.records]
  total = sum(each.minutes for each in papers.experiments)
  with progress.bar(
    'papers',
    total=total,
    initial=total - sum(each.minutes for each in todo),
    unit='min',
    bar_format=_BAR,
  ) as bar:
    for each in todo:
      name, number = each.name, len(log.records) + 1
      print(f'\n# {number} of {len(names)}: {name}\n')
      bar.set_postfix_str(name)
      began = time.monotonic()
      job = compare.prepare(values[name], mesh)
      workdir = make_workdir(str(folder / name), configs[name])
      words = [f'--config={each.path}']
      if papers.data != _DATA:
        words.append(f'--config.data={papers.data}')
      job.run(workdir, allow_code_execution, command('evaluate', words))
      log.append(_Done(name, digests[name], time.monotonic() - began))
      bar.update(each.minutes)
  rows = [
    {'experiment': f'[{name}]({name}/report.md)'}
    | _figures(files.read_json(folder / name / 'summary.json'))
    | {'minutes': log.records[name].seconds / 60}
    for name in names
  ]
  report = Report(papers.title, device='')
  report.add(Table(rows), _NOTE, *filter(None, [papers.note]))
  report.write(folder, name=SUMMARY)
  report.show(folder, SUMMARY)


def load_configs(
  papers: PapersConfig, load_config: Callable[[str], Any]
) -> dict[str, Any]:
  """Returns the ConfigDict of each experiment by name; checks all of them."""
  configs = {}
  for each in papers.experiments:
    config = load_config(each.path)
    config.data = papers.data
    schema.read(ComparisonConfig, config.to_dict())
    configs[each.name] = config
  return configs


def _digest(values: Mapping[str, Any]) -> str:
  text = json.dumps(values, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _figures(summary: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the main figures of an experiment's summary.json."""
  runs = summary['runs']
  overall: Sequence = [run for run in runs if run['task'] == ALL] or runs
  drafts = [run for run in overall if run['draft_len'] and run['lossless']]
  fastest = max(drafts, key=lambda run: run['speedup'])
  sampling = f't={fastest["temperature"]:g}'
  return {
    'methods': len([run for run in overall if run['draft_len']]),
    'texts': sum(run['sequences'] for run in overall),
    'speedup': fastest['speedup'],
    'τ': fastest['block_efficiency'],
    'fastest': f'{fastest["method"]} {fastest["branching"]}, {sampling}',
    'flagged': sum(
      finding['verdict'] not in ('lossless', 'too few texts')
      for finding in summary['lossless']
    ),
  }
