"""Times of rounds and passes on this device, beside the plan's predictions.

Of a pair of trained models the rounds of whole texts; of published shapes with
random weights plain decoding, passes over several tokens, and an EAGLE draft.
"""

import os
import pathlib
from typing import Any, NamedTuple

import jax

from specsamp.errors import UserError
from specsamp.experiments import transformers_baseline
from specsamp.experiments.accelerator import report
from specsamp.experiments.accelerator.config import AcceleratorConfig
from specsamp.experiments.accelerator.results import Results
from specsamp.experiments.accelerator.shapes import Shape
from specsamp.experiments.accelerator.texts import Texts
from specsamp.planning import gpu
from specsamp.planning.gpu import Nodes

_GRAPHS = '--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL'


def put_loops_in_graphs() -> None:
  """Has XLA put loops and branches into CUDA graphs; before its first use."""
  given = os.environ.get('XLA_FLAGS', '')
  os.environ['XLA_FLAGS'] = f'{given} {_GRAPHS}'.strip()


def prepare(values: dict[str, Any], transformers: bool) -> 'Job':
  """Loads and checks all that is needed; writes nothing.

  Args:
    values: an `AcceleratorConfig` as plain values.
    transformers: whether to time its plain decoding of the shapes beside ours.
      Not of the config, so that a run can end without it.

  Raises:
    UserError: a file or value that does not fit, or transformers is asked for
      and is not installed.
  """
  config = AcceleratorConfig.read(values)
  if transformers:
    transformers_baseline.check_can_run()
  shapes = [Shape(each, config, transformers) for each in config.shapes]
  topology = gpu.of_kind(jax.devices()[0].device_kind)
  return Job(config, [Texts.make(config), *shapes], topology)


class Job(NamedTuple):
  """A checked run.

  Attributes:
    config: what was asked for.
    models: what is timed, one after the other.
    topology: this device, None if the plan does not know it.
  """

  config: AcceleratorConfig
  models: list[Texts | Shape]
  topology: Nodes | None

  def run(self, workdir: pathlib.Path, graphs: bool = False) -> None:
    """Writes results.jsonl as times come, and after each model report.md and
    summary.json. A run that was cut off goes on where it was.

    Args:
      workdir: a folder.
      graphs: whether loops and branches are in CUDA graphs; such times stand
        beside the others.

    Raises:
      UserError: something could not be timed; all else was.
    """
    programs = [
      program
      for each in self.models
      for program in each.programs(self.topology)
    ]
    results = Results.open(workdir / 'results.jsonl', programs, graphs)
    for each in self.models:
      each.time(results)
      report.write(workdir, self.config.title, programs, results, self.topology)
    rows = report.rows(programs, results)
    print(f'\n{report.table(rows, "simple")}\n')
    print(report.note(self.topology, results))
    print(f'\nReport: {workdir / "report.md"}')
    if results.problems:
      raise UserError(f'not timed: {"; ".join(results.problems)}')
