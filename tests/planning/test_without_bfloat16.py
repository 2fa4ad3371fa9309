"""What a T4, which has no bfloat16, would run: no pass converts a weight."""

import dataclasses
import functools
import math
import re

import jax
import pytest

from specsamp.drafting.draft import TokenTree
from specsamp.models import TransformerConfig
from specsamp.planning import compile, topology, work

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
_SMALLEST = 1024 * 1024  # entries of a weight, and of nothing else


@functools.cache
def _mesh():
  return compile.mesh_of(topology.parse('t4:1'))


def _compiled(part, target, draft):
  """The program of a part, as `compile.compile_part` makes it."""
  lower, models = compile._LOWER[part]
  configs = [{'target': target, 'draft': draft}[model] for model in models]
  sizes = [work.shapes(config, 1, 512, 1, _mesh()) for config in configs]
  with jax.set_mesh(_mesh()):
    return lower(configs, sizes, _mesh(), TokenTree.chain(4), 512, 1).compile()


def _computations(hlo):
  """Name -> lines of each computation of a program's text."""
  found, lines = {}, []
  for line in hlo.splitlines():
    head = re.match(r'(?:ENTRY )?%?([\w.-]+) \(.*\{$', line)
    if head:
      lines = found.setdefault(head[1], [])
    elif line.startswith('  '):
      lines.append(line)
  return found


def _size(shape):
  return math.prod(int(n) for n in shape.split(',') if n)


def _converts(hlo, smallest):
  """Kernels that convert an array so large and write the result to memory."""
  computations = _computations(hlo)
  fused = set(re.findall(r'fusion\(.*calls=%?([\w.-]+)', hlo))
  found = []
  for name, lines in computations.items():
    if name in fused:  # what is written is what the fusion returns
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
        found.append(line.strip())
  return found


_BOTH = dict(norm='layer', positions='learned', gated=False, biases='all')


@pytest.mark.parametrize('part', compile.PARTS)
@pytest.mark.parametrize(
  'change',
  [
    {},
    dict(tied_embeddings=True, qk_norm=True),
    pytest.param(_BOTH, marks=pytest.mark.slow),
  ],
  ids=['llama', 'tied', 'opt'],
)
def test_no_pass_converts_a_weight(part, change):
  models = [dataclasses.replace(c, **change) for c in (_TARGET, _DRAFT)]
  compiled = _compiled(part, *models)
  assert _converts(compiled.as_text(), _SMALLEST) == []
  # The head alone would be 64 MiB in float32; the q, k and v of both layers,
  # each layer's in one weight, 8.
  assert compiled.memory_analysis().temp_size_in_bytes < 6 * 2**20


def test_bfloat16_would_convert_them_all():
  sixteen = dataclasses.replace(_TARGET, dtype='bfloat16')
  hlo = _compiled('scoring pass', sixteen, None).as_text()
  # Of each layer q, kv, o, up, down, of which XLA joins the first two; and of
  # both layers' a few at once.
  assert len(_converts(hlo, _SMALLEST)) >= 8
