"""All comparisons of the papers, one after another: one summary."""

import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.sharding import Mesh

from specsamp.errors import UserError
from specsamp.evaluation.metrics import ALL
from specsamp.evaluation.reporting import tables
from specsamp.experiments import compare
from specsamp.experiments.config import ComparisonConfig
from specsamp.utils import distributed, files, progress, schema

DONE = 'done.jsonl'
SUMMARY = 'papers.md'
_LINE = {'name': str, 'config': str, 'seconds': float}
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


class Experiment(NamedTuple):
  """A config of the papers.

  Attributes:
    name: of its file below `configs/papers`, and of its folder.
    minutes: that it should take, to tell the time left.
    config: its values, a ConfigDict.
    command: that runs it alone.
  """

  name: str
  minutes: float
  config: Any
  command: str

  @property
  def digest(self) -> str:
    """Of all its values."""
    text = json.dumps(self.config.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Papers(NamedTuple):
  """Checked experiments.

  Attributes:
    title: of the summary.
    experiments: in their order.
    left_out: names of those that lack an argument, with what it is.
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
    """Runs each in a folder of its own, and writes a summary of all.

    One that has ended is not run again; one that was cut off goes on.

    Args:
      folder: of all of them.
      make_workdir: (path, config) -> the folder of a run that writes there.
      mesh: where to decode; None is one device.
      allow_code_execution: see `compare.Comparison.run`.
    """
    path = folder / DONE
    digests = {each.name: each.digest for each in self.experiments}
    found = files.read_lines(
      path,
      lambda line: (
        files.has_shape(line, _LINE)
        and digests.get(line['name']) == line['config']
        and (folder / line['name'] / 'report.md').exists()
      ),
      key=lambda line: line['name'],
    )
    seconds = {line['name']: line['seconds'] for line in found.kept}
    todo = [each for each in self.experiments if each.name not in seconds]
    # A mistake in the first, such as data that are not there, leaves nothing.
    prepared = [compare.prepare(e.config.to_dict(), mesh) for e in todo[:1]]
    found.rewrite(found.kept)
    bar = progress.bar(
      'papers',
      total=sum(each.minutes for each in self.experiments),
      initial=sum(e.minutes for e in self.experiments if e.name in seconds),
      unit='min',
      bar_format=_BAR,
    )
    with distributed.first_opens(path, 'a') as file, bar:
      for number, each in enumerate(todo, start=len(seconds) + 1):
        print(f'\n# {number} of {len(self.experiments)}: {each.name}\n')
        bar.set_postfix_str(each.name)
        began = time.monotonic()
        values = each.config.to_dict()
        job = prepared.pop() if prepared else compare.prepare(values, mesh)
        workdir = make_workdir(str(folder / each.name), each.config)
        job.run(workdir, allow_code_execution, each.command)
        seconds[each.name] = time.monotonic() - began
        line = (each.name, each.digest, seconds[each.name])
        file.write(json.dumps(dict(zip(_LINE, line, strict=True))) + '\n')
        file.flush()
        bar.update(each.minutes)
    self._summarize(folder, seconds)

  def _summarize(
    self, folder: pathlib.Path, seconds: Mapping[str, float]
  ) -> None:
    cells = []
    for each in self.experiments:
      summary = files.read_json(folder / each.name / 'summary.json')
      cells.append(
        {'experiment': f'[{each.name}]({each.name}/report.md)'}
        | _figures(summary)
        | {'minutes': seconds[each.name] / 60}
      )
    lines = [f'# {self.title}', '', tables.render(cells), '']
    lines += [
      'Minutes: of the call that ended it. Fastest: over autoregressive '
      'sampling of the same target, of the methods that are lossless. '
      'Flagged: texts that could be told from those of the target alone, which '
      'happens to one report in 100 of a method that is lossless.'
    ]
    lines += [
      f'\n{name}: left out, {why}' for name, why in self.left_out.items()
    ]
    text = '\n'.join(lines) + '\n'
    distributed.first_does(
      lambda: files.replace(folder / SUMMARY, text), f'{folder / SUMMARY}'
    )
    print(f'\n{text}\nSummary: {folder / SUMMARY}')


def prepare(
  values: Mapping[str, Any], load_config: LoadConfig, command: Command
) -> Papers:
  """Reads all configs; writes nothing.

  Args:
    values: of a config such as `configs/papers/all.py`.
    load_config: (FILE or FILE:ARGUMENT) -> its config.
    command: (launcher, arguments) -> that calls it.

  Raises:
    UserError: a config that there is not, or that does not fit.
  """
  papers = schema.read(PapersConfig, values)
  experiments, left_out = [], {}
  for one in papers.experiments:
    if one.needs and not one.arg:
      left_out[one.name] = one.needs
      continue
    name = f'configs/papers/{one.name}.py' + (one.arg and f':{one.arg}')
    words = [f'--config={name}']
    config = load_config(name)
    if config.data != papers.data:
      config.data = papers.data
      words.append(f'--config.data={config.data}')
    schema.read(ComparisonConfig, config.to_dict())
    alone = command('evaluate', words)
    experiments.append(Experiment(one.name, one.minutes, config, alone))
  names = [each.name for each in experiments]
  if len(set(names)) < len(names):
    raise UserError(f'experiments: got {names}, expected none twice')
  if not names:
    raise UserError('experiments: got none, expected at least one')
  return Papers(papers.title, experiments, left_out)


def _figures(summary: Mapping[str, Any]) -> dict[str, Any]:
  """What an experiment came to, of its summary.json."""
  runs = summary['runs']
  whole: Sequence = [run for run in runs if run['task'] == ALL] or runs
  drafts = [run for run in whole if run['draft_len'] and run['lossless']]
  fastest = max(drafts, key=lambda run: run['speedup'])
  sampling = f't={fastest["temperature"]:g}'
  return {
    'methods': len([run for run in whole if run['draft_len']]),
    'texts': sum(run['sequences'] for run in whole),
    'speedup': fastest['speedup'],
    'τ': fastest['block_efficiency'],
    'fastest': f'{fastest["method"]} {fastest["branching"]}, {sampling}',
    'flagged': sum(
      one['verdict'] not in ('lossless', 'too few texts')
      for one in summary['lossless']
    ),
  }
