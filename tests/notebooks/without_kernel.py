"""A notebook's cells in a process of their own, in a shell without a kernel.

A kernel and its client wait for each other now and then, for as long as the
client is willing to. What readers see is stored by way of a kernel: `execute`.
"""

import json
import os
import pathlib
import traceback
from typing import NamedTuple

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config


class Ran(NamedTuple):
  """What became of the cells.

  Attributes:
    error: a traceback; '' if there was none. Cells after it were not run.
    kinds: MIME types of what was displayed.
  """

  error: str
  kinds: set[str]


def run(server, sources, folder, timeout) -> Ran:
  """Runs cells one after the other.

  Args:
    server: the context that forks the process off.
    sources: of the cells.
    folder: where it runs, of which it keeps its own files.
    timeout: seconds, for all cells.

  Raises:
    TimeoutError: it ran for longer.
  """
  path = folder / 'ran.json'
  process = server.Process(target=_run, args=(list(sources), folder, path))
  process.start()
  process.join(timeout)
  if process.is_alive():
    process.kill()
    raise TimeoutError(f'the cells ran for over {timeout} s')
  if process.exitcode:
    return Ran(f'the process ended with code {process.exitcode}', set())
  error, kinds = json.loads(path.read_text())
  return Ran(error, set(kinds))


def _run(sources, folder: pathlib.Path, path: pathlib.Path):
  os.chdir(folder)
  os.environ['IPYTHONDIR'] = str(folder)
  config = Config()
  config.HistoryManager.enabled = False
  shell = InteractiveShell.instance(config=config)
  shell.enable_gui = lambda *_: None  # it has no loop of events
  shell.enable_matplotlib('inline')
  errors, kinds = [], set()
  # Of a cell, and of what its sliders call.
  shell.showtraceback = lambda *_, **__: errors.append(traceback.format_exc())
  for source in sources:
    with capture_output() as shown:
      result = shell.run_cell(source)
    if not (result.success or errors):
      errors.append(repr(result.error_before_exec))
    if errors:
      break
    kinds.update(kind for each in shown.outputs for kind in each.data)
  path.write_text(json.dumps([''.join(errors), sorted(kinds)]))
