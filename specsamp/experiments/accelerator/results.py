"""Times as they come, in a file that a run that was cut off goes on with."""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from specsamp.evaluation.reporting import report
from specsamp.experiments.transformers_baseline import OURS, THEIRS
from specsamp.planning.rounds import Prediction
from specsamp.utils import files


class Program(NamedTuple):
  """Something that is timed.

  Attributes:
    model: name of it.
    name: of the round or the pass.
    plan: what is predicted; None of a device or a drafter without a plan.
  """

  model: str
  name: str
  plan: Prediction | None


class Line(NamedTuple):
  """A time: a line of results.jsonl.

  Attributes:
    model: see `Program`.
    program: its name.
    package: whose it is.
    graphs: whether loops and branches were in CUDA graphs too.
    device: that it ran on.
    ms: milliseconds of the round or the pass.
    tokens: τ, tokens a round, of trained models; else None.
  """

  model: str
  program: str
  package: str
  graphs: bool
  device: str
  ms: float
  tokens: float | None

  @property
  def key(self) -> tuple[str, str, str, bool]:
    return self.model, self.program, self.package, self.graphs


_SHAPE = {
  'model': str,
  'program': str,
  'package': str,
  'graphs': bool,
  'device': str,
  'ms': float,
  'tokens': (float, None),
}


@dataclasses.dataclass
class Results:
  """The times of a run, and of those before it in the same folder.

  Attributes:
    path: of their file.
    graphs: whether this run has loops and branches in CUDA graphs too.
    lines: in the order in which they came.
    problems: what could not be timed in this run, and why.
  """

  path: pathlib.Path
  graphs: bool
  lines: list[Line]
  problems: list[str] = dataclasses.field(default_factory=list)

  @property
  def has_theirs(self) -> bool:
    """Whether any time is of transformers."""
    return any(line.package == THEIRS for line in self.lines)

  @classmethod
  def open(
    cls, path: pathlib.Path, programs: Sequence[Program], graphs: bool
  ) -> 'Results':
    """Reads what a run that was cut off has left.

    Args:
      path: of a file that need not be there.
      programs: all that is timed.
      graphs: see `Results`.
    """
    known = {(program.model, program.name) for program in programs}

    def is_own(value: Any) -> bool:
      return (
        files.has_shape(value, _SHAPE)
        and len(value) == len(_SHAPE)
        and (value['model'], value['program']) in known
        and value['package'] in (OURS, THEIRS)
        and value['device'] == report.device()
        and value['ms'] > 0
      )

    found = files.read_lines(path, is_own, key=lambda value: Line(**value).key)
    found.rewrite(found.kept)
    return cls(path, graphs, [Line(**value) for value in found.kept])

  def missing(
    self, model: str, names: Sequence[str], package: str = OURS
  ) -> list[str]:
    """Those of these programs that have no time."""
    done = {line.key for line in self.lines}
    return [
      name for name in names if (model, name, package, self.graphs) not in done
    ]

  def add(
    self,
    model: str,
    program: str,
    ms: float,
    tokens: float | None = None,
    package: str = OURS,
  ) -> None:
    """Writes and prints a time, unless there is one already."""
    if not self.missing(model, [program], package):
      return
    line = Line(
      model, program, package, self.graphs, report.device(), float(ms), tokens
    )
    with self.path.open('a') as file:
      file.write(json.dumps(line._asdict()) + '\n')
    self.lines.append(line)
    graphs = ', loops in graphs' * self.graphs
    print(f'{package}, {model}, {program}{graphs}: {ms:.3f} ms', flush=True)

  @contextlib.contextmanager
  def noting(self, what: str, *others: type[Exception]) -> Iterator[None]:
    """Notes that something could not be timed, and lets the run go on.

    Args:
      what: was to be timed.
      *others: errors to note beside those of JAX's runtime.
    """
    try:
      yield
    except (jax.errors.JaxRuntimeError, *others) as error:
      line = next(iter(str(error).splitlines()), '')
      self.problems.append(f'{what}: {type(error).__name__}: {line}')
      print(f'not timed: {self.problems[-1]}', flush=True)
