"""Programs compiled for chips that are not there, and what they turn out to be.

A draft step, the scoring pass and the whole speculative loop: the same code
that decodes, lowered for the devices of a topology.
"""

import collections
import functools
import math
import re
import time

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from specsamp.decoding import scoring
from specsamp.decoding.loop import Decoder, Inputs
from specsamp.decoding.state import Prompts, with_axes
from specsamp.drafting.draft import TokenTree
from specsamp.drafting.language_model import LanguageModelDrafter
from specsamp.drafting.no_drafter import NoDrafter
from specsamp.errors import UserError
from specsamp.models import Transformer, TransformerConfig
from specsamp.planning import kernels, work
from specsamp.planning.topology import Topology
from specsamp.planning.work import Collective, Part
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.verification.token import TokenVerifier

PARTS = ('draft step', 'scoring pass', 'speculative loop')

_PROMPT = 32  # tokens; only its cache is looked at
_STOPS = 8


def mesh_of(topology: Topology) -> Mesh:
  """All its chips on the model axis, to compile for."""
  devices = topology.devices()
  return meshes.make(1, len(devices), devices)


def compile_part(
  name: str,
  target: TransformerConfig,
  draft: TransformerConfig,
  mesh: Mesh,
  *,
  gamma: int,
  context: int,
  batch: int = 1,
) -> Part:
  """Compiles one of `PARTS` and reads off what it takes of a chip.

  Args:
    name: `draft step`, a token from the draft; `scoring pass`, the target over
      γ + 1 tokens; or `speculative loop`, all rounds of both.
    target: the target.
    draft: the draft.
    mesh: of `mesh_of`.
    gamma: γ, drafted tokens.
    context: slots of the caches.
    batch: rows.

  Raises:
    UserError: it does not fit into a chip's memory.
  """
  lower, models = _LOWER[name]
  configs = [{'target': target, 'draft': draft}[model] for model in models]
  tree = TokenTree.chain(gamma)
  return _part(name, lower, configs, mesh, tree, context, batch)


def compile_tree_pass(
  target: TransformerConfig,
  tree: TokenTree,
  mesh: Mesh,
  *,
  context: int,
  batch: int,
) -> Part:
  """Compiles the target's pass over a tree; it is named by `tree_pass_name`.

  Args:
    target: the target.
    tree: of the draft.
    mesh: of `mesh_of`.
    context: slots of the cache.
    batch: rows.

  Raises:
    UserError: it does not fit into a chip's memory.
  """
  name = tree_pass_name(tree, batch)
  return _part(name, _scoring_pass, [target], mesh, tree, context, batch)


def tree_pass_name(tree: TokenTree, batch: int) -> str:
  """Such as `tree pass, N=32, B=8`."""
  return f'tree pass, N={tree.size}, B={batch}'


def _part(name, lower, configs, mesh, tree, context, batch) -> Part:
  """Lowers, compiles and measures; the configs are those that it runs."""
  sizes = [
    work.shapes(config, mesh.size, context, batch, mesh) for config in configs
  ]
  began = time.perf_counter()
  try:
    with jax.set_mesh(mesh):
      lowered = lower(configs, sizes, mesh, tree, context, batch)
      compiled, run = _compile(lowered, mesh)
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    line = str(error).splitlines()[0]
    raise UserError(f'{name} does not fit: {line}') from None
  memory = compiled.memory_analysis()
  weights = sum(work.num_bytes(params) for params, _ in sizes)
  caches = sum(work.num_bytes(cache) for _, cache in sizes)
  return Part(
    name=name,
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
    kernels=run,
    num_layers=sum(config.num_layers for config in configs),
    seconds=time.perf_counter() - began,
  )


def _compile(lowered, mesh: Mesh):
  if mesh.devices.flat[0].platform == 'gpu':
    return kernels.compile_for_gpu(lowered)
  return lowered.compile(), work.NO_KERNELS


def collectives(hlo: str) -> tuple[Collective, ...]:
  """The collectives of a program's text, the largest first."""
  found = collections.Counter()
  for kind, arrays in messages(hlo):
    bits = sum(math.prod(dims) * _bits(dtype) for dtype, dims in arrays)
    found[kind, bits // 8] += 1
  ordered = sorted(found.items(), key=lambda item: (-item[0][1], item[0][0]))
  return tuple(Collective(kind, size, count) for (kind, size), count in ordered)


def _bits(dtype: str) -> int:
  """32 of f32, 8 of f8e4m3fn and of pred."""
  match = re.match(r'[a-z]+(\d+)', dtype)
  return int(match[1]) if match else 8


def messages(hlo: str) -> list[tuple[str, list[tuple[str, tuple[int, ...]]]]]:
  """Kind and results, (dtype, shape) each, of all collectives in a text."""
  found = []
  hlo = re.sub(r'/\*index=\d+\*/', '', hlo)  # in tuples of more than five
  for result, kind, start in re.findall(_COLLECTIVE, hlo):
    arrays = [
      (dtype, tuple(int(dim) for dim in dims.split(',') if dim))
      for dtype, dims in re.findall(r'(\w+)\[([\d,]*)\]', result)
    ]
    if start and kind != 'all-reduce':
      # What only starts lists its operands first, then its results, and some
      # of them handles.
      arrays = [array for array in arrays if array != ('u32', ())]
      arrays = arrays[len(arrays) // 2 :]
    found.append((kind, arrays))
  return found


_COLLECTIVE = (
  r'= (\([^=]*?\)|\S+) (all-reduce|all-gather|reduce-scatter|all-to-all|'
  r'collective-permute|collective-broadcast|ragged-all-to-all)(-start)?\('
)


def _draft_step(configs, sizes, mesh, tree, context, batch):
  (config,), ((params, _),) = configs, sizes
  decoder = Decoder(Transformer(config), TokenVerifier())
  inputs, begun = _begun(decoder, params, NoDrafter(), mesh, context, batch)
  jitted = jax.jit(decoder.round, donate_argnums=1, keep_unused=True)
  return jitted.lower(inputs, begun)


def _scoring_pass(configs, sizes, mesh, tree, context, batch):
  (config,), ((params, cache),) = configs, sizes

  def score(params, tokens_bn, root_b, cache):
    out = scoring.tree_attention(
      Transformer(config), params, tree, tokens_bn, root_b, cache
    )
    return out.logits, out.cache

  tokens = jax.ShapeDtypeStruct((batch, tree.size), jnp.int32)
  root = jax.ShapeDtypeStruct((batch,), jnp.int32)
  jitted = jax.jit(score, donate_argnums=3, keep_unused=True)
  return jitted.lower(params, tokens, root, cache)


def _speculative_loop(configs, sizes, mesh, tree, context, batch):
  (target, draft), ((params, _), (draft_params, _)) = configs, sizes
  drafter = LanguageModelDrafter(
    params=draft_params,
    transformer=Transformer(draft),
    tokenizer=None,  # nothing is decoded
    tree=tree,
  )
  decoder = Decoder(Transformer(target), TokenVerifier())
  inputs, begun = _begun(decoder, params, drafter, mesh, context, batch)
  jitted = jax.jit(decoder.decode, donate_argnums=1, keep_unused=True)
  return jitted.lower(inputs, begun, jax.ShapeDtypeStruct((), jnp.int32))


def _begun(decoder: Decoder, params, drafter, mesh, context, batch):
  """Shapes of the inputs of a round and of the state before it."""
  rows = lambda *shape, dtype=jnp.int32: jax.ShapeDtypeStruct(
    (batch, *shape), dtype
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
    stop_tokens=rows(_STOPS),
  )
  prompts = Prompts(rows(min(_PROMPT, context)), rows(), rows(), rows())
  begun = jax.eval_shape(
    functools.partial(decoder.prefill, capacity=context), inputs, prompts
  )
  put = rules.sharding(mesh)
  return inputs, with_axes(
    begun,
    lambda x, *axes: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=put(x, *axes)
    ),
  )


_LOWER = {
  'draft step': (_draft_step, ('draft',)),
  'scoring pass': (_scoring_pass, ('target',)),
  'speculative loop': (_speculative_loop, ('target', 'draft')),
}
