"""Programs compiled for chips that need not be there, and their memory.

The programs are the code that decodes, lowered for the devices of a topology: a
draft step, the target's scoring pass, and the whole speculative loop.
"""

import collections
import dataclasses
import functools
import math
import re
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from specsamp.decoding import scoring
from specsamp.decoding.loop import Decoder, Inputs
from specsamp.decoding.state import Prompts, with_axes
from specsamp.drafting.draft import TokenTree
from specsamp.drafting.drafter import NoDrafter
from specsamp.drafting.language_model import LanguageModelDrafter
from specsamp.errors import UserError
from specsamp.models import KVCache, Transformer, TransformerConfig
from specsamp.planning import work
from specsamp.planning.topology import Topology
from specsamp.planning.work import Collective
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.verification.token import TokenVerifier

DRAFT_STEP = 'draft step'
SCORING_PASS = 'scoring pass'
LOOP = 'speculative loop'
TREE_PASS = 'tree pass'
KINDS = (DRAFT_STEP, SCORING_PASS, LOOP)  # of every plan

_PROMPT_LENGTH = 32  # only the shape of its cache is used
_NUM_STOP_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class Program:
  """A program to compile.

  Attributes:
    kind: DRAFT_STEP, one token from the draft; SCORING_PASS or TREE_PASS, the
      target over all nodes of a tree; or LOOP, all rounds of both models.
    tree: tree of the draft.
    context: slots of the caches.
    batch: rows.
  """

  kind: str
  tree: TokenTree
  context: int
  batch: int = 1

  @property
  def name(self) -> str:
    if self.kind == TREE_PASS:
      return f'{TREE_PASS}, N={self.tree.size}, B={self.batch}'
    return self.kind


@dataclasses.dataclass(frozen=True)
class Compiled:
  """Memory and messages of a compiled program on one chip.

  Attributes:
    topology: chips that run the program.
    program: the program.
    weights: bytes of the weights.
    caches: bytes of the caches.
    temporaries: bytes that the program needs while it runs.
    other: bytes of its code and its other inputs and outputs.
    collectives: all collectives, those of a loop's body once.
    num_layers: layers of the models that it runs.
    seconds: time of the compilation.
  """

  topology: Topology
  program: Program
  weights: int
  caches: int
  temporaries: int
  other: int
  collectives: tuple[Collective, ...]
  num_layers: int
  seconds: float

  @property
  def total(self) -> int:
    """Bytes in all."""
    return self.weights + self.caches + self.temporaries + self.other


@functools.cache
def mesh_of(topology: Topology) -> Mesh:
  """Returns a mesh with all chips on the model axis."""
  devices = topology.devices()
  return meshes.make(1, len(devices), devices)


def compile_program(
  program: Program,
  target: TransformerConfig,
  draft: TransformerConfig,
  topology: Topology,
) -> Compiled:
  """Compiles a program and measures its memory and messages.

  Args:
    program: the program.
    target: target model.
    draft: draft model.
    topology: chips to compile for.

  Raises:
    UserError: the program does not fit into a chip's memory.
  """
  start = time.perf_counter()
  mesh = mesh_of(topology)
  try:
    compiled = lower(program, target, draft, mesh).compile()
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    line = str(error).splitlines()[0]
    raise UserError(f'{program.name} does not fit: {line}') from None
  models = _models(program, target, draft, mesh)
  weights = sum(work.num_bytes(model.params) for model in models)
  caches = sum(work.num_bytes(model.cache) for model in models)
  memory = compiled.memory_analysis()
  return Compiled(
    topology=topology,
    program=program,
    weights=weights,
    caches=caches,
    temporaries=memory.temp_size_in_bytes,
    other=memory.argument_size_in_bytes
    - weights
    - caches
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.generated_code_size_in_bytes,
    collectives=collectives(compiled.as_text()),
    num_layers=sum(model.config.num_layers for model in models),
    seconds=time.perf_counter() - start,
  )


class _Model(NamedTuple):
  """Model of a program, with the shapes of its parameters and cache."""

  config: TransformerConfig
  params: Any
  cache: KVCache


def _models(program: Program, target, draft, mesh: Mesh) -> list[_Model]:
  configs = [draft if program.kind == DRAFT_STEP else target]
  if program.kind == LOOP:
    configs = [target, draft]
  shape = (mesh.size, program.context, program.batch, mesh)
  return [_Model(config, *work.shapes(config, *shape)) for config in configs]


def lower(
  program: Program,
  target: TransformerConfig,
  draft: TransformerConfig,
  mesh: Mesh,
) -> jax.stages.Lowered:
  """Lowers a program for the devices of a mesh, see `compile_program`."""
  lower_kind = {DRAFT_STEP: _lower_draft_step, LOOP: _lower_loop}.get(
    program.kind, _lower_pass
  )
  models = _models(program, target, draft, mesh)
  with jax.set_mesh(mesh):
    return lower_kind(program, mesh, *models)


def _lower_draft_step(program: Program, mesh: Mesh, model: _Model):
  decoder = Decoder(Transformer(model.config), TokenVerifier())
  inputs, state = _state(decoder, model.params, NoDrafter(), program, mesh)
  jitted = jax.jit(decoder.round, donate_argnums=1, keep_unused=True)
  return jitted.lower(inputs, state)


def _lower_pass(program: Program, mesh: Mesh, model: _Model):
  transformer = Transformer(model.config)

  def score(params, tokens_bn, root_b, cache):
    out = scoring.tree_attention(
      transformer, params, program.tree, tokens_bn, root_b, cache
    )
    return out.logits, out.cache

  batch, size = program.batch, program.tree.size
  tokens = jax.ShapeDtypeStruct((batch, size), jnp.int32)
  root = jax.ShapeDtypeStruct((batch,), jnp.int32)
  jitted = jax.jit(score, donate_argnums=3, keep_unused=True)
  return jitted.lower(model.params, tokens, root, model.cache)


def _lower_loop(program: Program, mesh: Mesh, target: _Model, draft: _Model):
  drafter = LanguageModelDrafter(
    params=draft.params,
    transformer=Transformer(draft.config),
    tokenizer=None,  # nothing is decoded
    tree=program.tree,
  )
  decoder = Decoder(Transformer(target.config), TokenVerifier())
  inputs, state = _state(decoder, target.params, drafter, program, mesh)
  jitted = jax.jit(decoder.decode, donate_argnums=1, keep_unused=True)
  return jitted.lower(inputs, state, jax.ShapeDtypeStruct((), jnp.int32))


def _state(decoder: Decoder, params, drafter, program: Program, mesh: Mesh):
  """Returns the shapes of a round's inputs and of the state before it."""
  rows = lambda *shape, dtype=jnp.int32: jax.ShapeDtypeStruct(
    (program.batch, *shape), dtype
  )
  inputs = Inputs(
    params=params,
    drafter=drafter,
    sampling=SamplingParams(
      temperature=rows(dtype=jnp.float32),
      top_k=rows(),
      top_p=rows(dtype=jnp.float32),
      min_p=rows(dtype=jnp.float32),
    ),
    stop_tokens=rows(_NUM_STOP_TOKENS),
  )
  prompt = rows(min(_PROMPT_LENGTH, program.context))
  state = jax.eval_shape(
    functools.partial(decoder.prefill, capacity=program.context),
    inputs,
    Prompts(prompt, rows(), rows(), rows()),
  )
  sharding = rules.sharding(mesh)
  return inputs, with_axes(
    state,
    lambda x, *axes: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding(x, *axes)
    ),
  )


def collectives(hlo: str) -> tuple[Collective, ...]:
  """Returns the collectives of a program's text, largest first."""
  counts = collections.Counter()
  for kind, arrays in messages(hlo):
    bits = sum(math.prod(dims) * _num_bits(dtype) for dtype, dims in arrays)
    counts[kind, bits // 8] += 1
  ordered = sorted(counts.items(), key=lambda item: (-item[0][1], item[0][0]))
  return tuple(Collective(kind, size, count) for (kind, size), count in ordered)


def _num_bits(dtype: str) -> int:
  """Returns 32 for f32, 8 for f8e4m3fn and for pred."""
  match = re.match(r'[a-z]+(\d+)', dtype)
  return int(match[1]) if match else 8


def messages(hlo: str) -> list[tuple[str, list[tuple[str, tuple[int, ...]]]]]:
  """Returns the kind and results, (dtype, shape) each, of all collectives.

  Args:
    hlo: text of a compiled program.
  """
  sent = []
  hlo = re.sub(r'/\*index=\d+\*/', '', hlo)  # in tuples of more than five
  for result, kind, start in re.findall(_COLLECTIVE, hlo):
    arrays = [
      (dtype, tuple(int(dim) for dim in dims.split(',') if dim))
      for dtype, dims in re.findall(r'(\w+)\[([\d,]*)\]', result)
    ]
    if start and kind != 'all-reduce':
      # The start of an asynchronous collective lists its operands, then its
      # results, and for some kinds handles (scalars of type u32).
      arrays = [array for array in arrays if array != ('u32', ())]
      arrays = arrays[len(arrays) // 2 :]
    sent.append((kind, arrays))
  return sent


_COLLECTIVE = (
  r'= (\([^=]*?\)|\S+) (all-reduce|all-gather|reduce-scatter|all-to-all|'
  r'collective-permute|collective-broadcast|ragged-all-to-all)(-start)?\('
)
