"""Mixtures of experts: each token runs through the MLPs that its router chose.

No token is dropped, and a pass reads every chosen expert once (in blocks of
many tokens, once per block). The tokens of an expert are gathered into blocks
of a fixed number of rows, and a loop over the blocks slices one expert's
weights from the table, which is never copied. GPUs have other forms for few
tokens, see `_by_sums` and `_by_all`, except for weights in 8 bits.

On a mesh each chip has a part of the hidden units of every expert, like those
of a dense MLP. All chips then have equal work whatever the router chooses, and
one all-reduce adds their results. If chips had whole experts, the few tokens of
a scoring pass would wait for the chip with the most experts.
"""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from specsamp.models import float16, kernels, quantized
from specsamp.models.config import TransformerConfig
from specsamp.sharding import rules

# Rows of a block. An expert with few tokens wastes the other rows, one with
# many tokens is read once per block.
_MIN_ROWS, _MAX_ROWS = 16, 256
# On GPUs all experts run over this number of tokens, see `_by_all`.
_MAX_DENSE = 512


class Blocks(NamedTuple):
  """Assignments of tokens to experts, in blocks of one expert.

  M blocks of R rows; K assignments of each of N tokens.

  Attributes:
    experts_m: expert of each block; that of the last one in use if it is not.
    count: number of blocks in use, the first ones.
    tokens_mr: token of each row; rows that are not in use have token 0.
    rows_nk: row of each assignment, counted over all blocks.
  """

  experts_m: jax.Array
  count: jax.Array
  tokens_mr: jax.Array
  rows_nk: jax.Array


class Experts(nn.Module):
  """The sum of a token's gated MLPs, each times the weight of the router."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    c = self.config
    normal = nn.initializers.normal
    shape = (c.num_experts, c.expert_width, c.width)
    hidden = 2 * c.num_layers * c.expert_width * c.experts_per_token
    params = {
      'router': self.param(
        'router', normal(c.width**-0.5), (c.num_experts, c.width)
      ),
      'expert_gate': self.param('expert_gate', normal(c.width**-0.5), shape),
      'expert_up': self.param('expert_up', normal(c.width**-0.5), shape),
      'expert_down': self.param(
        'expert_down',
        normal(hidden**-0.5),
        (c.num_experts, c.width, c.expert_width),
      ),
    }
    mesh = rules.mesh_in_use()
    apply = functools.partial(_apply, config=c)
    if mesh is None:
      return apply(x, params)
    axes = 'batch', None, None
    x_spec = rules.spec(axes, x.shape, mesh)
    specs = jax.tree.map(lambda s: s.spec, rules.param_shardings(params, mesh))

    def on_chip(x, params):
      return jax.lax.psum(apply(x, params), rules.MODEL)

    # XLA would add the results of chips in every step of the loop.
    return jax.shard_map(
      on_chip,
      in_specs=(x_spec, specs),
      out_specs=x_spec,
      check_vma=False,
    )(x, params)


def _apply(x, params, config: TransformerConfig):
  """Computes the layer, [B, T, D], with all or a part of the hidden units."""
  x_nd = x.reshape(-1, x.shape[-1])
  scores_ne = kernels.logits(x_nd, params['router'], config.dtype)
  weights_nk, experts_nk = route(scores_ne, config)
  by_blocks = functools.partial(_by_blocks, config=config)
  on_gpu = functools.partial(by_blocks, skips=False)
  if not any(map(quantized.is_quantized, params.values())):
    if experts_nk.size <= config.num_experts:
      on_gpu = functools.partial(_by_sums, config=config)
    elif len(x_nd) <= _MAX_DENSE:
      on_gpu = functools.partial(_by_all, config=config)
  out_nkd = jax.lax.platform_dependent(
    x_nd,
    params,
    experts_nk,
    tpu=functools.partial(by_blocks, is_tpu=True),
    cuda=on_gpu,
    default=by_blocks,
  )
  weighted = out_nkd.astype(jnp.float32) * weights_nk[..., None]
  return weighted.sum(axis=1).astype(out_nkd.dtype).reshape(x.shape)


def _by_sums(x_nd, params, experts_nk, config: TransformerConfig):
  """Computes `_by_blocks` of few tokens as reductions over gathered weights.

  XLA for GPUs reads the weights of an expert within the reduction. A loop would
  start some five kernels for each expert, which take longer than its weights.
  """

  def product(x, name):
    weights = params[name][experts_nk].astype(jnp.float32)
    return jnp.sum(weights * x.astype(jnp.float32), axis=-1)

  x_n11d = x_nd[:, None, None]
  gate_nkf = kernels.ACTIVATIONS[config.activation](
    product(x_n11d, 'expert_gate')
  )
  hidden_nkf = gate_nkf * product(x_n11d, 'expert_up')
  out_nkd = product(hidden_nkf[:, :, None], 'expert_down')
  return out_nkd.astype(float16.wide(config.dtype))


def _by_all(x_nd, params, experts_nk, config: TransformerConfig):
  """Computes `_by_blocks` with all experts over all tokens.

  A few hundred tokens choose most of the experts. GPUs compute all of them in
  three kernels, in the time that reading all weights takes.
  """
  gate_efd, up_efd, down_edf = (
    params[f'expert_{name}'].astype(config.dtype)
    for name in ('gate', 'up', 'down')
  )
  einsum = functools.partial(
    jnp.einsum, preferred_element_type=float16.wide(config.dtype)
  )
  gate_enf = kernels.ACTIVATIONS[config.activation](
    einsum('nd,efd->enf', x_nd, gate_efd)
  )
  hidden_enf = gate_enf * einsum('nd,efd->enf', x_nd, up_efd)
  if config.dtype == float16.NAME:
    hidden_enf, power_en = float16.scaled(hidden_enf)
    out_end = einsum('enf,edf->end', hidden_enf, down_edf) * power_en[..., None]
  else:
    out_end = einsum('enf,edf->end', hidden_enf, down_edf)
  return out_end[experts_nk, jnp.arange(len(x_nd))[:, None]]


def _by_blocks(
  x_nd,
  params,
  experts_nk,
  config: TransformerConfig,
  is_tpu: bool = False,
  skips: bool = True,
):
  """Returns the output of each token's experts, [N, K, D].

  Args:
    x_nd: tokens.
    params: the parameters of `Experts`.
    experts_nk: experts of the tokens.
    config: shape of the layer.
    is_tpu: True for the order of the tables in a TPU's memory.
    skips: False to compute all blocks. On GPUs a branch waits for the host, and
      blocks that are not in use have the weights of the last one.
  """
  num_rows = rows_per_block(len(x_nd), config)
  blocks = group(experts_nk, config.num_experts, num_rows)
  activate = kernels.ACTIVATIONS[config.activation]
  tables = [params[f'expert_{name}'] for name in ('gate', 'up', 'down')]
  if is_tpu:
    # The order of this table in memory (see `rules`), without which XLA would
    # copy the table for the loop. Scales of 8 bits have one axis less.
    turn = lambda a, ndim: jnp.swapaxes(a, -2, -1) if a.ndim == ndim else a
    tables[2] = jax.tree.map(lambda a: turn(a, 3), tables[2])

  def run(x_rd, expert):
    gate, up, down = (
      jax.tree.map(lambda a: a[expert], table) for table in tables
    )
    if is_tpu:
      down = jax.tree.map(lambda a: turn(a, 2), down)
    project = functools.partial(kernels.project, dtype=config.dtype)
    hidden_rf = activate(project(x_rd, gate)) * project(x_rd, up)
    return project(hidden_rf, down)

  def block(inputs):
    index, expert, tokens_r = inputs
    x_rd = x_nd[tokens_r]
    if not skips:
      return run(x_rd, expert)
    skip = lambda x_rd, _: jnp.zeros(x_rd.shape, float16.wide(config.dtype))
    return jax.lax.cond(index < blocks.count, run, skip, x_rd, expert)

  indices_m = jnp.arange(len(blocks.experts_m), dtype=jnp.int32)
  out_mrd = jax.lax.map(block, (indices_m, blocks.experts_m, blocks.tokens_mr))
  return out_mrd.reshape(-1, x_nd.shape[-1])[blocks.rows_nk]


def route(scores_ne, config: TransformerConfig):
  """Returns weights and indices of each token's experts.

  Args:
    scores_ne: float32 scores of all experts.
    config: has the number of experts per token, and the rule of the weights.

  Returns:
    float32 [N, K] and int32 [N, K], K = `experts_per_token`.
  """
  top_nk, experts_nk = jax.lax.top_k(scores_ne, config.experts_per_token)
  if config.router == 'top_k':
    return jax.nn.softmax(top_nk), experts_nk
  total_n = jax.nn.logsumexp(scores_ne, axis=-1, keepdims=True)
  return jnp.exp(top_nk - total_n), experts_nk


def rows_per_block(num_tokens: int, config: TransformerConfig) -> int:
  """Returns R, twice the mean number of an expert's tokens, within bounds."""
  mean = num_tokens * config.experts_per_token / config.num_experts
  rows = _MIN_ROWS
  while rows < min(2 * mean, _MAX_ROWS):
    rows *= 2
  return min(rows, num_tokens)


def group(experts_nk, num_experts: int, num_rows: int) -> Blocks:
  """Returns the blocks of `num_rows` rows that hold all assignments."""
  num_tokens, per_token = experts_nk.shape
  total = num_tokens * per_token
  # Every expert in use may leave all rows but one of its last block empty.
  num_used = min(num_experts, total)
  num_blocks = (total + num_used * (num_rows - 1)) // num_rows
  if num_tokens <= num_rows:
    num_blocks = num_used
  experts_a = experts_nk.reshape(-1)
  chosen_ae = jax.nn.one_hot(experts_a, num_experts, dtype=jnp.int32)
  sizes_e = chosen_ae.sum(axis=0)
  earlier_ae = jnp.cumsum(chosen_ae, axis=0) - chosen_ae
  earlier_a = jnp.take_along_axis(earlier_ae, experts_a[:, None], axis=1)[:, 0]
  blocks_e = -(-sizes_e // num_rows)
  ends_e = jnp.cumsum(blocks_e)
  rows_a = (ends_e - blocks_e)[experts_a] * num_rows + earlier_a
  tokens_a = jnp.arange(total, dtype=jnp.int32) // per_token
  tokens_r = (
    jnp.zeros(num_blocks * num_rows, jnp.int32).at[rows_a].set(tokens_a)
  )
  indices_m = jnp.arange(num_blocks, dtype=jnp.int32)
  experts_m = jnp.sum(
    ends_e[None] <= indices_m[:, None], axis=1, dtype=jnp.int32
  )
  return Blocks(
    jnp.minimum(experts_m, experts_a.max()),
    ends_e[-1],
    tokens_r.reshape(num_blocks, num_rows),
    rows_a.reshape(experts_nk.shape),
  )
