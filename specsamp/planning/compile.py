"""Decoding programs compiled for chips that need not be attached.

The programs are a draft step, a scoring pass, the whole speculative loop, and
the prefill of a prompt that fills the context.
"""

import collections
import dataclasses
import functools
import math
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from specsamp.decoding import scoring
from specsamp.decoding.loop import Decoder, Inputs
from specsamp.decoding.state import Prompts, with_axes
from specsamp.drafting.draft import TokenTree
from specsamp.drafting.drafter import NoDrafter, cache_slots
from specsamp.drafting.language_model import LanguageModelDrafter
from specsamp.errors import UserError
from specsamp.models import KVCache, Transformer, TransformerConfig
from specsamp.planning import work
from specsamp.planning.topology import Topology
from specsamp.planning.work import Collective
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes
from specsamp.verification.token import TokenVerifier

PREFILL = 'prefill'  # both models over a prompt, in chunks
DRAFT_STEP = 'draft step'  # one token from the draft
SCORING_PASS = 'scoring pass'  # the target over a draft and its root
LOOP = 'speculative loop'  # all rounds of both models
KINDS = (DRAFT_STEP, SCORING_PASS, LOOP)  # those of every plan

_PROMPT_LENGTH = 32  # only the shape of its cache is used
_NUM_STOP_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class Compiled:
  """Memory and messages of a compiled program on one chip.

  Attributes:
    topology: chips that run the program.
    kind: kind of the program.
    weights: bytes of the weights.
    caches: bytes of the caches.
    temporaries: bytes that the program needs while it runs.
    other: bytes of its code and its other inputs and outputs.
    collectives: all collectives, those of a loop's body once.
    seconds: time of the compilation.
  """

  topology: Topology
  kind: str
  weights: int
  caches: int
  temporaries: int
  other: int
  collectives: tuple[Collective, ...]
  seconds: float

  @property
  def total(self) -> int:
    """Total of all bytes."""
    return self.weights + self.caches + self.temporaries + self.other


@functools.cache
def mesh_of(topology: Topology) -> Mesh:
  """Returns a mesh with all chips on the model axis."""
  devices = topology.devices()
  return meshes.make(1, len(devices), devices)


def compile_program(
  kind: str,
  target: TransformerConfig,
  draft: TransformerConfig,
  topology: Topology,
  **shape: int,
) -> Compiled:
  """Compiles a program and measures its memory and messages.

  Args:
    kind: one of `KINDS`, or `PREFILL`.
    target: target model.
    draft: draft model.
    topology: chips to compile for.
    **shape: keyword arguments of `lower`.

  Raises:
    UserError: the program does not fit into a chip's memory.
  """
  start = time.perf_counter()
  lowered, shapes = lower(kind, target, draft, mesh_of(topology), **shape)
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    line = str(error).splitlines()[0]
    raise UserError(f'{kind} does not fit: {line}') from None
  weights = work.num_bytes([params for params, _ in shapes])
  caches = work.num_bytes([cache for _, cache in shapes])
  memory = compiled.memory_analysis()
  return Compiled(
    topology=topology,
    kind=kind,
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
    seconds=time.perf_counter() - start,
  )


def lower(
  kind: str,
  target: TransformerConfig,
  draft: TransformerConfig,
  mesh: Mesh,
  *,
  gamma: int,
  context: int,
  batch: int = 1,
) -> tuple[jax.stages.Lowered, list[tuple[Any, KVCache]]]:
  """Lowers a program for the devices of a mesh.

  Args:
    kind: one of `KINDS`, or `PREFILL`.
    target: target model.
    draft: draft model.
    mesh: mesh whose devices need not be attached.
    gamma: draft tokens.
    context: slots of the caches.
    batch: rows.

  Returns:
    The program, and the parameters and cache of each model that it runs.
  """
  both = [target, draft]
  configs = {DRAFT_STEP: [draft], SCORING_PASS: [target]}.get(kind, both)
  shapes = [
    work.shapes(config, mesh.size, context, batch, mesh) for config in configs
  ]
  params, cache = shapes[0]
  transformer = Transformer(configs[0])
  tree = TokenTree.chain(gamma)
  integers = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)

  def score(params, tokens_bn, root_b, cache):
    out = scoring.tree_attention(
      transformer, params, tree, tokens_bn, root_b, cache
    )
    return out.logits, out.cache

  with jax.set_mesh(mesh):
    if kind == SCORING_PASS:
      jitted = jax.jit(score, donate_argnums=3, keep_unused=True)
      tokens = integers(batch, tree.size)
      lowered = jitted.lower(params, tokens, integers(batch), cache)
      return lowered, shapes
    decoder = Decoder(transformer, TokenVerifier())
    if kind == DRAFT_STEP:
      run, drafter, bounds = decoder.round, NoDrafter(), ()
    else:
      drafter = LanguageModelDrafter(
        params=shapes[1][0],
        transformer=Transformer(configs[1]),
        tokenizer=None,  # nothing is decoded
        tree=tree,
      )
      run, bounds = decoder.decode, (integers(),)
    floats = jax.ShapeDtypeStruct((batch,), jnp.float32)
    inputs = Inputs(
      params=params,
      drafter=drafter,
      sampling=SamplingParams(floats, integers(batch), floats, floats),
      stop_tokens=integers(batch, _NUM_STOP_TOKENS),
    )
    width = _PROMPT_LENGTH
    if kind == PREFILL:
      width = context - cache_slots(drafter)
    prompts = Prompts(
      integers(batch, max(1, min(width, context))), *[integers(batch)] * 3
    )
    prefill = functools.partial(decoder.prefill, capacity=context)
    if kind == PREFILL:
      jitted = jax.jit(prefill, keep_unused=True)
      return jitted.lower(inputs, prompts), shapes
    state = jax.eval_shape(prefill, inputs, prompts)
    state = with_axes(state, work.sharded_shape(mesh))
    jitted = jax.jit(run, donate_argnums=1, keep_unused=True)
    return jitted.lower(inputs, state, *bounds), shapes


def collectives(hlo: str) -> tuple[Collective, ...]:
  """Returns the collectives of a program's text, largest first."""
  counts = collections.Counter()
  for kind, arrays in messages(hlo):
    bits = sum(math.prod(dims) * _num_bits(dtype) for dtype, dims in arrays)
    counts[kind, bits // 8] += 1
  ordered = sorted(counts.items(), key=lambda item: (-item[0][1], item[0][0]))
  return tuple(Collective(kind, size, count) for (kind, size), count in ordered)


def _num_bits(dtype: str) -> int:
  match = re.match(r'[a-z]+(\d+)', dtype)
  return int(match[1]) if match else 8  # pred


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
