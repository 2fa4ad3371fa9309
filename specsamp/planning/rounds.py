"""Predicted times of passes and rounds on one chip, also of EAGLE drafters."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from specsamp.drafting.draft import TokenTree
from specsamp.models import TransformerConfig
from specsamp.planning import latency, work
from specsamp.planning.topology import Topology
from specsamp.planning.work import Work


class Prediction(NamedTuple):
  """Milliseconds of one or several passes.

  Attributes:
    memory: time to read weights and all slots of the caches.
    total: time in all, see `latency.Time.total`.
  """

  memory: float
  total: float


def of_passes(passes: list[Work], topology: Topology) -> Prediction:
  """Returns the time of passes that run one after the other."""
  times = [latency.predict(work, topology) for work in passes]
  return Prediction(
    sum(time.memory for time in times), sum(time.total for time in times)
  )


def of_round(
  target: TransformerConfig,
  tree: TokenTree,
  draft: Callable[[int], Work] | None,
  context: int,
) -> list[Work]:
  """Returns the passes of a round: one of the draft per depth, then the target.

  Args:
    target: target model.
    tree: tree of the draft. A root alone is autoregressive decoding.
    draft: returns the draft's pass over a number of tokens.
    context: cache slots of the target.
  """
  depths = [tree.depths[node] for node in tree.internal]
  drafted = [draft(depths.count(depth)) for depth in range(tree.depth)]
  scored = work.of_pass(target, shards=1, tokens=tree.size, context=context)
  return [*drafted, scored]


def eagle_pass(target: TransformerConfig, tokens: int, context: int) -> Work:
  """Returns a pass of an EAGLE layer with its fusion and the target's LM head.

  Args:
    target: model whose features and head the layer reads.
    tokens: number of tokens fed.
    context: cache slots.
  """
  layer = dataclasses.replace(target, num_layers=1)
  layer_pass = work.of_pass(layer, shards=1, tokens=tokens, context=context)
  fusion = 2 * target.width**2
  return dataclasses.replace(
    layer_pass,
    weights=layer_pass.weights + fusion * jnp.dtype(target.dtype).itemsize,
    flops=layer_pass.flops + 2 * fusion * tokens,
  )
