"""Programs for a T4, which has no bfloat16: no pass converts a weight."""

import dataclasses
import math
import re

import pytest

from specsamp.drafting.draft import TokenTree
from specsamp.models import TransformerConfig
from specsamp.planning import compile, topology
from specsamp.planning.compile import Program

pytestmark = [pytest.mark.extended, pytest.mark.gpu_aot]

_TARGET = TransformerConfig(
  vocab_size=16384,
  width=1024,
  num_layers=2,
  num_heads=8,
  num_kv_heads=4,
  head_dim=128,
  mlp_width=2816,
  max_length=2048,
  dtype='float16',
)
_DRAFT = dataclasses.replace(_TARGET, num_layers=1)
_SMALLEST = 1024 * 1024  # entries; only weights have as many


def _compiled(kind, target, draft):
  program = Program(kind, TokenTree.chain(4), context=512)
  mesh = compile.mesh_of(topology.parse('t4:1'))
  return compile.lower(program, target, draft, mesh).compile()


def _computations(hlo):
  """Returns the lines of each computation of a program's text by its name."""
  computations, lines = {}, []
  for line in hlo.splitlines():
    head = re.match(r'(?:ENTRY )?%?([\w.-]+) \(.*\{$', line)
    if head:
      lines = computations.setdefault(head[1], [])
    elif line.startswith('  '):
      lines.append(line)
  return computations


def _size(shape):
  return math.prod(int(n) for n in shape.split(',') if n)


def _converts(hlo, smallest):
  """Returns the kernels that convert a large array and write the result."""
  computations = _computations(hlo)
  fused = set(re.findall(r'fusion\(.*calls=%?([\w.-]+)', hlo))
  kernels = []
  for name, lines in computations.items():
    if name in fused:  # only the result of the fusion is written
      continue
    for line in lines:
      match = re.match(r'\s+(?:ROOT )?%?\S+ = (.*?) (convert|fusion)\(', line)
      if not match:
        continue
      written = {_size(s) for s in re.findall(r'\w+\[([\d,]*)\]', match[1])}
      if max(written) < smallest:
        continue
      inside = [line]
      if match[2] == 'fusion':
        inside = computations[re.search(r'calls=%?([\w.-]+)', line)[1]]
      converts = r'= \w+\[([\d,]*)\]\S* convert\('
      converted = re.findall(converts, '\n'.join(inside))
      if any(_size(shape) >= smallest for shape in converted):
        kernels.append(line.strip())
  return kernels


_BOTH = dict(norm='layer', positions='learned', gated=False, biases='all')


@pytest.mark.parametrize('kind', compile.KINDS)
@pytest.mark.parametrize(
  'change',
  [
    {},
    dict(tied_embeddings=True, qk_norm=True),
    pytest.param(_BOTH, marks=pytest.mark.slow),
  ],
  ids=['llama', 'tied', 'opt'],
)
def test_no_pass_converts_a_weight(kind, change):
  models = [dataclasses.replace(c, **change) for c in (_TARGET, _DRAFT)]
  compiled = _compiled(kind, *models)
  assert _converts(compiled.as_text(), _SMALLEST) == []
  # The head alone would be 64 MiB in float32; the q, k and v of both layers,
  # each layer's in one weight, 8.
  assert compiled.memory_analysis().temp_size_in_bytes < 6 * 2**20


def test_bfloat16_would_convert_them_all():
  sixteen = dataclasses.replace(_TARGET, dtype='bfloat16')
  hlo = _compiled(compile.SCORING_PASS, sixteen, None).as_text()
  # q, kv, o, up and down of each layer, of which XLA joins the first two, and
  # some of both layers.
  assert len(_converts(hlo, _SMALLEST)) >= 8
