"""Reports of tables, figures and notes, as Markdown and for a terminal."""

import dataclasses
import importlib.metadata
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import tabulate

from specsamp.utils import distributed, files

Cell = str | float | None


class Table(NamedTuple):
  """Rows of cells by the names of their columns.

  Attributes:
    rows: one mapping per row. A missing cell or None stays empty; a column of
      such cells is omitted.
    digits: decimal places of numbers.
    column_digits: decimal places of single columns, by their names.
  """

  rows: Sequence[Mapping[str, Cell]]
  digits: int = 2
  column_digits: Mapping[str, int] = {}

  def render(self, style: str = 'github') -> str:
    """Returns the table as text in a style of tabulate."""
    has_value = lambda name: any(row.get(name) is not None for row in self.rows)
    columns = dict.fromkeys(name for row in self.rows for name in row)
    names = [*filter(has_value, columns)]
    digits = [self.column_digits.get(name, self.digits) for name in names]
    return tabulate.tabulate(
      [[row.get(name) for name in names] for row in self.rows],
      headers=names,
      tablefmt=style,
      floatfmt=[f'.{count}f' for count in digits],
    )


class Figure(NamedTuple):
  """A PNG in the folder of the report, which a terminal does not show."""

  name: str


Part = str | Table | Figure


@dataclasses.dataclass
class Report:
  """A report in a folder: report.md, its figures, and summary.json.

  Parts are paragraphs of Markdown (headings have two hashes), tables and
  figures, in order::

    report = Report('Throughput of a queue', command=command)
    report.add(Table(rows), '## Memory', Figure('soak.png'))
    report.write(workdir, {'runs': rows})
    report.show(workdir)

  Attributes:
    title: title, without `#`.
    command: command that makes the report, if there is one.
    device: devices of the measurement; '' for a report without measurements.
    packages: further Python packages whose versions the summary lists.
    parts: parts of the report, in order.
    details: further parts at the end of report.md, which a terminal does not
      show.
  """

  title: str
  command: str = ''
  device: str = dataclasses.field(default_factory=lambda: device())
  packages: Sequence[str] = ()
  parts: list[Part] = dataclasses.field(default_factory=list)
  details: list[Part] = dataclasses.field(default_factory=list)

  def add(self, *parts: Part) -> None:
    """Appends parts."""
    self.parts += parts

  def markdown(self) -> str:
    """Returns report.md."""
    blocks = [f'# {self.title}']
    for part in [*self.parts, *self.details]:
      if isinstance(part, Table):
        blocks.append(part.render())
      elif isinstance(part, Figure):
        blocks.append(f'![{pathlib.Path(part.name).stem}]({part.name})')
      else:
        blocks.append(part)
    if self.device:
      blocks.append(f'On {self.device}.')
    if self.command:
      blocks.append(f'```sh\n{self.command}\n```')
    return '\n\n'.join(blocks) + '\n'

  def text(self) -> str:
    """Returns the tables and notes as a terminal shows them."""
    blocks = [
      part.render('simple')
      if isinstance(part, Table)
      else part.removeprefix('## ')
      for part in self.parts
      if not isinstance(part, Figure)
    ]
    return '\n\n'.join(blocks)

  def write(
    self,
    folder: pathlib.Path,
    summary: Mapping[str, Any] | None = None,
    name: str = 'report.md',
  ) -> None:
    """Writes the report, and summary.json if there is a summary.

    The summary also gets `device` and `versions`. The first process of a run
    writes, into a folder that exists.

    Raises:
      UserError: a file cannot be written.
    """

    def write_files():
      if summary is not None:
        about = {'device': self.device} if self.device else {}
        about['versions'] = _versions(*self.packages)
        files.replace_json(folder / 'summary.json', {**summary, **about})
      files.replace(folder / name, self.markdown())

    distributed.first_does(write_files, f'{folder / name}')

  def show(self, folder: pathlib.Path, name: str = 'report.md') -> None:
    """Prints the text of the report and the path of its file."""
    print(f'{self.text()}\n\nReport: {folder / name}')


def device() -> str:
  """Returns the number and the kind of the devices, such as `8 x TPU v5e`."""
  devices = jax.devices()
  kind = devices[0].device_kind
  if devices[0].platform == 'cpu':
    kind = f'{platform.machine()} CPU'
  return f'{len(devices)} x {kind}'


def _versions(*packages: str) -> dict[str, str]:
  """Returns the versions of Python and of the packages that affect results."""
  names = ('jax', 'jaxlib', 'flax', 'numpy', *packages)
  return {name: importlib.metadata.version(name) for name in names} | {
    'python': platform.python_version()
  }
