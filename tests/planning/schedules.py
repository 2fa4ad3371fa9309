"""Kernels of a GPU's program, from the schedule that XLA dumps.

The program's own text shows neither the kernels of a fusion nor CUDA graphs.
"""

import pathlib
import re
import tempfile

import jax

_NO_KERNEL = (
  r'While|Sequential|AllReduce|AllGather|ReduceScatter|AllToAll|Collective|'
  r'Nccl|Ragged|PartitionId|ReplicaId|WaitForStreams|.*Done$|.*Start$'
)


def compile_and_count(lowered: jax.stages.Lowered):
  """Returns the compiled program, its kernels, and those in CUDA graphs."""
  with tempfile.TemporaryDirectory() as folder:
    compiled = lowered.compile(compiler_options={'xla_dump_to': folder})
    dumps = sorted(pathlib.Path(folder).glob('*.thunk_sequence*.txt'))
    # The second dump, with graphs, exists only if it differs from the first.
    with_graphs = [path for path in dumps if 'after_thunk' in path.name]
    return compiled, *count((with_graphs or dumps)[0].read_text())


def count(schedule: str) -> tuple[int, int]:
  """Counts the kernels of a schedule, and those in CUDA graphs.

  The body of a loop counts once, and branches not at all.
  """
  total = in_graphs = 0
  graph = branch = None  # indentation of the enclosing one
  for space, kind in re.findall(r'^( *)\d+: k(\w+)', schedule, re.MULTILINE):
    indent = len(space)
    graph = None if graph is not None and indent <= graph else graph
    branch = None if branch is not None and indent <= branch else branch
    if branch is not None:
      continue
    if kind == 'CommandBuffer':
      graph = indent
    elif kind == 'Conditional':
      branch = indent
    elif not re.match(_NO_KERNEL, kind):
      total += 1
      in_graphs += graph is not None
  return total, in_graphs
