"""How long passes and rounds take one chip, drafters of features included."""

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
    memory: to read weights and caches, all slots of them.
    total: with all that `latency` reckons.
  """

  memory: float
  total: float


def of_passes(passes: list[Work], topology: Topology) -> Prediction:
  """Of passes, one after the other."""
  times = [latency.predict(each, topology) for each in passes]
  return Prediction(
    sum(time.memory for time in times), sum(time.total for time in times)
  )


def of_round(
  target: TransformerConfig,
  tree: TokenTree,
  draft: Callable[[int], Work] | None,
  context: int,
) -> list[Work]:
  """The passes of a round: the draft's, one for each depth, and the target's.

  Args:
    target: the target.
    tree: of the draft; a root alone is autoregressive sampling.
    draft: the draft's pass over so many tokens.
    context: slots of the target's cache.
  """
  depths = [tree.depths[node] for node in tree.internal]
  drafted = [draft(depths.count(depth)) for depth in range(tree.depth)]
  scored = work.of_pass(target, shards=1, tokens=tree.size, context=context)
  return [*drafted, scored]


def eagle_pass(target: TransformerConfig, tokens: int, context: int) -> Work:
  """A pass of an EAGLE layer, the target's LM head and what fuses included.

  Args:
    target: whose features and head it reads.
    tokens: fed.
    context: slots of its cache.
  """
  layer = dataclasses.replace(target, num_layers=1)
  found = work.of_pass(layer, shards=1, tokens=tokens, context=context)
  fuse = 2 * target.width**2
  return dataclasses.replace(
    found,
    weights=found.weights + fuse * jnp.dtype(target.dtype).itemsize,
    flops=found.flops + 2 * fuse * tokens,
  )
