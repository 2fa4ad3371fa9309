"""Runs the cells of a notebook in a process with a shell and without a kernel.

A kernel and its client sometimes wait for each other until a timeout. `execute`
uses a kernel for the outputs that readers see.
"""

import json
import os
import pathlib
import traceback

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config


def run(server, sources, folder, timeout) -> tuple[str, set[str]]:
  """Runs cells one after the other.

  Args:
    server: context that forks the process off.
    sources: sources of the cells.
    folder: working folder of the process.
    timeout: seconds, for all cells.

  Returns:
    The first traceback, '' if there was none, after which no cell runs; and the
    MIME types of all displayed outputs.
  """
  path = folder / 'ran.json'
  process = server.Process(target=_run, args=(list(sources), folder, path))
  process.start()
  process.join(timeout)
  if process.is_alive():
    process.kill()
    raise TimeoutError(f'the cells ran for over {timeout} s')
  assert not process.exitcode, process.exitcode
  error, kinds = json.loads(path.read_text())
  return error, set(kinds)


def _run(sources, folder: pathlib.Path, path: pathlib.Path):
  os.chdir(folder)
  os.environ['IPYTHONDIR'] = str(folder)
  config = Config()
  config.HistoryManager.enabled = False
  shell = InteractiveShell.instance(config=config)
  shell.enable_gui = lambda *_: None  # there is no event loop
  shell.enable_matplotlib('inline')
  errors, kinds = [], set()
  # Errors of a cell, and of functions that its sliders call.
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
