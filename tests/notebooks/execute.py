"""Executes the notebooks and stores their outputs.

  python tests/notebooks/execute.py [NAME.ipynb ..]

Without a name it executes all of them, in minutes. The outputs are those that
GitHub shows: pictures at screen size in place of sliders, and no trace of the
machine.
"""

import base64
import copy
import io
import pathlib
import sys

import nbclient
import nbformat
import PIL.Image

FOLDER = pathlib.Path(__file__).parents[2] / 'notebooks'

_STORED = """\
import sys

import matplotlib

sys.modules['ipywidgets'] = None  # as if it were not installed
matplotlib.rcParams['figure.dpi'] = 80"""


def execute(notebook, folder):
  """Returns a copy of the notebook after a run in the folder."""
  ran = copy.deepcopy(notebook)
  ran.cells.insert(0, nbformat.v4.new_code_cell(_STORED))
  client = nbclient.NotebookClient(
    ran,
    timeout=1800,
    kernel_name='python3',
    resources={'metadata': {'path': folder}},
    record_timing=False,
    coalesce_streams=True,
  )
  client.execute()
  del ran.cells[0]
  return ran


def _in_few_colors(png):
  """Returns a picture in base64 that is a third as long."""
  picture = PIL.Image.open(io.BytesIO(base64.b64decode(png)))
  file = io.BytesIO()
  picture.convert('RGB').quantize(128).save(file, 'PNG', optimize=True)
  return base64.b64encode(file.getvalue()).decode()


def store(path):
  """Executes a notebook in its folder, and writes it there."""
  notebook = nbformat.read(path, as_version=4)
  ran = execute(notebook, path.parent)
  ran.metadata = notebook.metadata  # no version of Python
  code = [cell for cell in ran.cells if cell.cell_type == 'code']
  for count, cell in enumerate(code, start=1):
    cell.execution_count = count
    # Progress goes to stderr.
    cell.outputs = [o for o in cell.outputs if o.get('name') != 'stderr']
    for output in cell.outputs:
      if 'execution_count' in output:
        output.execution_count = count
      data = output.get('data', {})
      if 'image/png' in data:
        data['image/png'] = _in_few_colors(data['image/png'])
  nbformat.write(ran, path)


if __name__ == '__main__':
  for path in map(pathlib.Path, sys.argv[1:] or sorted(FOLDER.glob('*.ipynb'))):
    print(path.name, flush=True)
    store(path)
