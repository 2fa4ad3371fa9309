"""What a GPU program runs: kernels, CUDA graphs, and questions to its host.

Read from the schedule that XLA's GPU compiler dumps beside a program, for the
program's own text tells neither what became of a fusion nor what a graph holds.
"""

import pathlib
import re
import tempfile

import jax

from specsamp.planning.work import Kernels


def compile_for_gpu(lowered: jax.stages.Lowered):
  """The compiled program, and its `Kernels`."""
  with tempfile.TemporaryDirectory() as folder:
    compiled = lowered.compile(compiler_options={'xla_dump_to': folder})
    # The second, with its graphs, is only there if it is unlike the first.
    found = sorted(pathlib.Path(folder).glob('*.thunk_sequence*.txt'))
    with_graphs = [path for path in found if 'after_thunk' in path.name]
    schedule = (with_graphs or found)[0].read_text(encoding='utf-8')
  return compiled, count(schedule)


def count(schedule: str) -> Kernels:
  """The `Kernels` of a schedule, one line each, what is inside indented."""
  total = in_graphs = graphs = host_branches = 0
  graph = branch = None  # how far the one around a line is indented
  for space, kind in re.findall(r'^( *)\d+: k(\w+)', schedule, re.MULTILINE):
    indent = len(space)
    graph = None if graph is not None and indent <= graph else graph
    branch = None if branch is not None and indent <= branch else branch
    if branch is not None:
      continue
    if kind == 'CommandBuffer':
      graphs += 1
      graph = indent
    elif kind == 'Conditional':
      host_branches += graph is None
      branch = indent
    elif not re.match(_NO_KERNEL, kind):
      total += 1
      in_graphs += graph is not None
  return Kernels(total, in_graphs, graphs, host_branches)


_NO_KERNEL = (
  r'While|Sequential|AllReduce|AllGather|ReduceScatter|AllToAll|Collective|'
  r'Nccl|Ragged|PartitionId|ReplicaId|WaitForStreams|.*Done$|.*Start$'
)
