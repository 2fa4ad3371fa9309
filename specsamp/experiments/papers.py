"""Runs the comparisons of all papers, and writes one summary."""

import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from specsamp.errors import UserError
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
_BAR = '{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}{postfix}]'

LoadConfig = Callable[[str], Any]
Command = Callable[[str, Sequence[str]], str]
MakeWorkdir = Callable[[str, Any], pathlib.Path]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
  """An experiment of the papers.

  Attributes:
    name: name of its config below `configs/papers`, and of its folder.
    minutes: minutes that it should take, to estimate the remaining time.
    arg: argument of the config.
    needs: what the argument must be; the experiment is skipped without it.
  """

  name: str
  minutes: float
  arg: str = ''
  needs: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class PapersConfig:
  """Experiments of the papers, to run one after another.

  Attributes:
    title: title of the summary.
    data: folder with the published sets of prompts.
    experiments: experiments, each a dict with `name`, `minutes` and maybe `arg`
      and `needs`: a config below configs/papers, the minutes that it should
      take, its argument, and what the argument must be. An experiment that
      needs an argument is skipped without it.
  """

  title: str
  data: str = '../shared/data'
  experiments: tuple[ExperimentConfig, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Done:
  """A finished experiment: a line of done.jsonl."""

  name: str
  config: str
  seconds: float


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A config of the papers.

  Attributes:
    name: name of its file below `configs/papers`, and of its folder.
    minutes: expected duration, for the progress bar.
    config: its values, a ConfigDict.
    command: command that runs it alone.
  """

  name: str
  minutes: float
  config: Any
  command: str

  @property
  def digest(self) -> str:
    """Hash of all values of the config."""
    text = json.dumps(self.config.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Papers:
  """Checked experiments.

  Attributes:
    title: title of the summary.
    experiments: experiments in order.
    left_out: names of the experiments that lack an argument, with a description
      of the argument.
  """

  title: str
  experiments: list[Experiment]
  left_out: dict[str, str]

  def run(
    self,
    folder: pathlib.Path,
    make_workdir: MakeWorkdir,
    mesh: Mesh | None = None,
    allow_code_execution: bool = False,
  ) -> None:
    """Runs each experiment in a separate folder, and writes the summary.

    Finished experiments are skipped, and an interrupted one resumes.

    Args:
      folder: folder of all experiments.
      make_workdir: (path, config) -> the folder of a run that writes there.
      mesh: mesh to decode on; None is one device.
      allow_code_execution: see `compare.Comparison.run`.
    """
    digests = {each.name: each.digest for each in self.experiments}
    log = RunLog(
      folder / DONE,
      _Done,
      lambda done: done.name,
      lambda done: (
        digests.get(done.name) == done.config
        and (folder / done.name / 'report.md').exists()
      ),
    )
    todo = [each for each in self.experiments if each.name not in log.records]
    # A mistake in the first config is found before anything is written.
    prepared = [compare.prepare(e.config.to_dict(), mesh) for e in todo[:1]]
    with progress.bar(
      'papers',
      total=sum(each.minutes for each in self.experiments),
      initial=sum(e.minutes for e in self.experiments if e not in todo),
      unit='min',
      bar_format=_BAR,
    ) as bar:
      for number, each in enumerate(todo, start=len(log.records) + 1):
        print(f'\n# {number} of {len(self.experiments)}: {each.name}\n')
        bar.set_postfix_str(each.name)
        began = time.monotonic()
        values = each.config.to_dict()
        job = prepared.pop() if prepared else compare.prepare(values, mesh)
        workdir = make_workdir(str(folder / each.name), each.config)
        job.run(workdir, allow_code_execution, each.command)
        seconds = time.monotonic() - began
        log.append(_Done(each.name, each.digest, seconds))
        bar.update(each.minutes)
    report = Report(self.title, device='')
    rows = [
      {'experiment': f'[{each.name}]({each.name}/report.md)'}
      | _figures(files.read_json(folder / each.name / 'summary.json'))
      | {'minutes': log.records[each.name].seconds / 60}
      for each in self.experiments
    ]
    report.add(Table(rows), _NOTE)
    report.add(
      *(f'{name}: left out, {why}' for name, why in self.left_out.items())
    )
    report.write(folder, name=SUMMARY)
    report.show(folder, SUMMARY)


def prepare(
  values: Mapping[str, Any], load_config: LoadConfig, command: Command
) -> Papers:
  """Reads all configs; writes nothing.

  Args:
    values: values of a config such as `configs/papers/all.py`.
    load_config: (FILE or FILE:ARGUMENT) -> its config.
    command: (launcher, arguments) -> command that calls the launcher.

  Raises:
    UserError: a config does not exist or is invalid.
  """
  papers = schema.read(PapersConfig, values)
  experiments, left_out = [], {}
  for entry in papers.experiments:
    if entry.needs and not entry.arg:
      left_out[entry.name] = entry.needs
      continue
    path = f'configs/papers/{entry.name}.py' + (entry.arg and f':{entry.arg}')
    words = [f'--config={path}']
    config = load_config(path)
    if config.data != papers.data:
      config.data = papers.data
      words.append(f'--config.data={config.data}')
    schema.read(ComparisonConfig, config.to_dict())
    alone = command('evaluate', words)
    experiments.append(Experiment(entry.name, entry.minutes, config, alone))
  names = [experiment.name for experiment in experiments]
  if not names or len(set(names)) < len(names):
    raise UserError(
      f'experiments: got {names}, expected at least one, without duplicates'
    )
  return Papers(papers.title, experiments, left_out)


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
