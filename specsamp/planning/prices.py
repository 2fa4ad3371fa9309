"""Price list of draft trees: passes over N nodes of each row, and best drafts.

All prices are predicted: the roofline of `latency`, plus the reads and writes
of all nodes' logits.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.models import TransformerConfig
from specsamp.planning import latency, speculation, tree_search, work
from specsamp.planning.speculation import Point
from specsamp.planning.topology import Topology

# Acceptance by rank of the embedded pair, 12 held-out functions of 128 tokens,
# multi-candidate rule without replacement: acceptance-0.json and
# acceptance-1.json of the first minute of
#   python launch/evaluate.py --config=configs/papers/mcsd/best_tree.py \
#     --config.top_p=0.95 --workdir=runs/acceptance
EMBEDDED_PAIR = (
  (
    'greedy',
    False,
    (.838, .105, .023, .009, .010, .001, .001, .006, .000, .001),
  ),
  (
    't=1, top-p 0.95',
    True,
    (.681, .094, .052, .024, .016, .009, .016, .008, .008, .004),
  ),
)  # fmt: skip

# Reads and writes of arrays as large as the logits, counted over the kernels
# that XLA compiles for an H100 for rounds under the multi-candidate rule (8
# rows of 32 nodes, 32,000 tokens). With a nucleus there are 42: 1 to write the
# logits, 7 to weigh them, 20 to find the nucleus, and 14 to verify. A greedy
# round has 25 in all, so 11 without verification; any sampling without a
# nucleus is charged as greedy.
_VERIFY_PASSES = 14
_SAMPLE_PASSES = {True: 1 + 7 + 20, False: 25 - _VERIFY_PASSES}

NOTE = (
  'The price list is predicted. Free nodes: the nodes of each row whose '
  'arithmetic takes no longer than reading weights and caches. Messages and '
  'logits grow with N before that. The logits, float32 [B, N, V], are read or '
  'written 42 times with a nucleus and 25 times without; 28 and 11 times where '
  'no draft is verified, at N=1 and in the draft. Milliseconds by N are those '
  'of the most expensive sampling listed, - where weights, caches and one copy '
  'of the logits do not fit. A level of a tree is charged as a pass of the '
  'draft over one token, whatever its width.'
)

_MAX_NODES = 1024  # also of rows; the search takes time with the square
_MAX_DEPTH = max(speculation.GAMMAS)


@dataclasses.dataclass(frozen=True)
class PriceConfig:
  """Entries of the price list.

  Attributes:
    nodes: sizes of a token tree, the root included; () leaves the list out.
    batches: numbers of rows.
    contexts: cache slots.
    acceptance: acceptance of samplings, ((name, has_nucleus, (probability,
      ..)), ..): True if the sampling has a nucleus, and the probability that
      the child of rank k is accepted.
    compile_nodes: sizes whose passes are compiled as well, each for the best
      tree of its size under the first acceptance, at the first and last batch
      and the first context; this takes minutes for each slice.
  """

  nodes: tuple[int, ...] = (1, 8, 16, 32, 64, 128)
  batches: tuple[int, ...] = (1, 8, 32)
  contexts: tuple[int, ...] = (2048,)
  acceptance: tuple[tuple[str, bool, tuple[float, ...]], ...] = EMBEDDED_PAIR
  compile_nodes: tuple[int, ...] = ()

  def __post_init__(self):
    for name, maximum in (
      ('nodes', _MAX_NODES),
      ('batches', _MAX_NODES),
      ('contexts', 2**31 - 1),
      ('compile_nodes', _MAX_NODES),
    ):
      values = getattr(self, name)
      if not all(1 <= n <= maximum for n in values):
        raise UserError(
          f'prices.{name}: got {values!r}, expected integers from 1 to '
          f'{maximum}'
        )
    for entry in self.acceptance:
      try:
        _, _, chances = entry
        tree_search.expected_tokens(TokenTree.chain(1), chances)
      except (TypeError, ValueError) as error:
        raise UserError(
          f'prices.acceptance: got {entry!r}, expected (name, has_nucleus, '
          f'(probability, ..)): {error}'
        ) from None
    sizes = (*self.nodes, *self.compile_nodes)
    if sizes and not (self.batches and self.contexts and self.acceptance):
      raise UserError('prices: expected batches, contexts and acceptance')
    if max(sizes, default=0) > min(self.contexts, default=0):
      raise UserError(
        f'prices.nodes: got {max(sizes)}, expected at most the shortest '
        f'context, {min(self.contexts)}'
      )

  def trees(self) -> Iterable[tuple[TokenTree, int, int]]:
    """Yields the trees to compile passes over, with their context and batch."""
    for num_nodes in self.compile_nodes:
      chances = self.acceptance[0][2]
      tree = tree_search.best_tree(chances, num_nodes, _MAX_DEPTH)
      for batch in dict.fromkeys((self.batches[0], self.batches[-1])):
        yield tree, self.contexts[0], batch

  def shapes(self) -> Iterable[tuple[int, int]]:
    """Returns every batch and context of the list."""
    if not self.nodes:
      return ()
    return itertools.product(self.batches, self.contexts)


class BestDraft(NamedTuple):
  """Fastest chain and fastest static tree.

  Attributes:
    chain: the chain, None if no pass over a draft fits.
    tree: shape of the tree, no deeper than the longest chain.
    tau: expected tokens per round of the tree, the bonus token included.
    ms_per_token: milliseconds of a round of the tree / tau.
    speedup: speedup of the tree over autoregressive decoding.
  """

  chain: Point | None
  tree: TokenTree
  tau: float
  ms_per_token: float
  speedup: float


@dataclasses.dataclass(frozen=True)
class Price:
  """Costs of passes on a slice, at a batch and a context.

  Attributes:
    topology: name of the slice.
    batch: B, rows.
    context: S, cache slots.
    pass_ms: milliseconds of a pass over N nodes of each row by N, under the
      most expensive sampling. An N that does not fit is missing.
    free_nodes: number of nodes of each row whose arithmetic is hidden by reads.
    best: fastest drafts by the name of an acceptance, None if no pass fits.
  """

  topology: str
  batch: int
  context: int
  pass_ms: Mapping[int, float]
  free_nodes: int
  best: Mapping[str, BestDraft | None]

  @property
  def key(self) -> dict[str, Any]:
    """The first cells of its rows in a table."""
    fields = ('topology', 'batch', 'context')
    return {name: getattr(self, name) for name in fields}


def price(
  target: TransformerConfig,
  draft: TransformerConfig,
  topology: Topology,
  config: PriceConfig,
  context: int,
  batch: int,
  room: int,
) -> Price:
  """Returns the price of a slice with its best chains and trees.

  Args:
    target: target model.
    draft: draft model, which runs one pass per level.
    topology: chips that run every pass together.
    config: sizes and acceptance.
    context: S, cache slots.
    batch: B, rows.
    room: bytes of a chip that weights and caches leave for the target's logits.

  Raises:
    UserError: heads or hidden units do not divide into the chips.
  """
  shards = topology.num_chips

  def time(model: TransformerConfig, nodes: int) -> latency.Time:
    model_pass = work.of_pass(
      model, shards=shards, tokens=nodes, context=context, batch=batch
    )
    return latency.predict(model_pass, topology)

  def logit_bytes(model: TransformerConfig, nodes: int) -> int:
    return work.logit_bytes(model, shards=shards, tokens=nodes, batch=batch)

  def logits_ms(model: TransformerConfig, nodes: int, nucleus: bool) -> float:
    # One node is a step without a draft, or a step of the draft itself.
    passes = _SAMPLE_PASSES[nucleus] + _VERIFY_PASSES * (nodes > 1)
    num_bytes = passes * logit_bytes(model, nodes)
    return 1e3 * num_bytes / topology.chip.hbm_bandwidth

  free = free_nodes(time(target, 1))
  # Chains of every length are trees too; tables show `config.nodes` only.
  sizes = {*config.nodes, *range(1, _MAX_DEPTH + 2)}
  sizes |= {free} if 1 <= free <= max(sizes) else set()
  target_ms = {
    n: time(target, n).total
    for n in sorted(sizes)
    if logit_bytes(target, n) <= room
  }
  draft_ms = time(draft, 1).total
  best, ms_by_sampling = {}, {}
  for name, nucleus, chances in config.acceptance:
    pass_ms = ms_by_sampling[nucleus] = {
      n: ms + logits_ms(target, n, nucleus) for n, ms in target_ms.items()
    }
    level_ms = draft_ms + logits_ms(draft, 1, nucleus)
    best[name] = best_draft(chances, pass_ms, level_ms) if pass_ms else None
  most_expensive = ms_by_sampling[max(ms_by_sampling)]
  return Price(topology.name, batch, context, most_expensive, free, best)


def best_draft(
  chances: Sequence[float], pass_ms: Mapping[int, float], draft_ms: float
) -> BestDraft:
  """Returns the fastest chain and the fastest static tree.

  Args:
    chances: [K], probability that the child of rank k is the accepted one.
    pass_ms: milliseconds of a pass over N nodes, by N, which includes 1.
    draft_ms: milliseconds to draft a level.
  """
  points = speculation.curve(
    chances[0],
    draft_ms,
    lambda gamma: pass_ms.get(gamma + 1, math.inf),
    pass_ms[1],
  )
  points = [point for point in points if point.gamma + 1 in pass_ms]
  chain = speculation.best(points) if points else None
  tree, rate = tree_search.fastest_tree(chances, pass_ms, draft_ms, _MAX_DEPTH)
  tau = tree_search.expected_tokens(tree, chances)
  return BestDraft(chain, tree, tau, 1 / rate, pass_ms[1] * rate)


def free_nodes(time_of_one: latency.Time) -> int:
  """Returns the nodes of each row whose arithmetic is hidden by reads.

  Args:
    time_of_one: time of a pass over one node of each row. Arithmetic grows with
      the nodes, reads do not.
  """
  return int(time_of_one.memory / time_of_one.compute)


def price_rows(
  prices: Sequence[Price], nodes: Sequence[int]
) -> list[dict[str, Any]]:
  """Returns milliseconds by N, a row per price, None if N does not fit."""
  return [
    price.key
    | {f'N={n} ms': price.pass_ms.get(n) for n in nodes}
    | {'free nodes': price.free_nodes}
    for price in prices
  ]


def draft_rows(prices: Sequence[Price]) -> list[dict[str, Any]]:
  """Returns the best chain and the best static tree at each acceptance.

  Cells of a chain that does not fit are None.
  """
  rows = []
  for price in prices:
    for name, best in price.best.items():
      row = price.key | {'acceptance': name}
      if best is None:
        rows.append(row | {'chain': 'not even N=1 fits'})
        continue
      chain = best.chain
      rows.append(
        row
        | {
          'chain': chain and f'γ={chain.gamma}',
          'chain ms/token': chain and chain.ms_per_token,
          'chain speedup': chain and chain.speedup,
          'tree nodes': best.tree.size,
          'depth': best.tree.depth,
          'τ': best.tau,
          'tree ms/token': best.ms_per_token,
          'tree speedup': best.speedup,
        }
      )
  return rows


def tree_rows(prices: Sequence[Price]) -> list[dict[str, Any]]:
  """Returns the parents of every best tree, the arguments of `TokenTree`."""
  return [
    price.key | {'acceptance': name, 'parents': best.tree.parents}
    for price in prices
    for name, best in price.best.items()
    if best
  ]
