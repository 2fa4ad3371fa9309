"""What a slice asks for a draft: passes over N nodes, and the best trees.

A price is predicted, whatever was measured: the roofline of `latency`, and
what is made of the logits of all nodes.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.models import TransformerConfig
from specsamp.planning import latency, speculation, tree_search, work
from specsamp.planning.speculation import Point
from specsamp.planning.topology import Topology

# Acceptance by rank of the embedded pair, 12 held-out functions of 128 tokens,
# multi-candidate rule without replacement; acceptance-0.json and
# acceptance-1.json of a minute of
#   python launch/evaluate.py --config=configs/papers/mcsd/best_tree.py \
#     --config.top_p=0.95 --workdir=runs/acceptance
# which may be stopped once they are there.
EMBEDDED_PAIR = (
  (
    'greedy',
    (.806, .105, .039, .012, .016, .003, .005, .001, .001, .005),
  ),
  (
    't=1, top-p 0.95',
    (.756, .073, .061, .025, .010, .005, .005, .009, .003, .004),
  ),
)  # fmt: skip

NOTE = (
  'Price list: predicted, all of it. Free nodes: as many of each row as are '
  'multiplied while weights and caches are read; the rest of a pass grows with '
  'N before that, messages and what is made of the logits, {passes} reads or '
  'writes of float32 [B, N, V] with a nucleus. A level of a tree is charged '
  "as a pass of the draft over one token, whatever the level's width."
)

# Of arrays as large as the logits, in a round with a nucleus under the
# multi-candidate rule, as counted over the kernels of what XLA compiles of it
# for an H100 (8 rows of 32 nodes, 32,000 tokens): 1 to write the logits, 7 to
# weigh them, 20 to find the nucleus, 14 to verify. A greedy round has 25.
_LOGIT_PASSES = 42

_MOST = 1024  # nodes, rows; the search takes time with the square
_DEPTH = max(speculation.GAMMAS)


@dataclasses.dataclass(frozen=True)
class PriceConfig:
  """What to put into the price list.

  Attributes:
    nodes: N, sizes of a tree, the root included; none leaves the list out.
    batches: rows.
    contexts: slots of the caches.
    acceptance: by name, the chance that the child of rank k is the accepted
      one: ((name, (chance, ..)), ..).
    compile_nodes: sizes whose passes are compiled too, at the first and the
      last batch and the first context, each of the best tree of its size for
      the first acceptance; minutes for each slice.
  """

  nodes: tuple[int, ...]
  batches: tuple[int, ...]
  contexts: tuple[int, ...]
  acceptance: tuple[tuple[str, tuple[float, ...]], ...]
  compile_nodes: tuple[int, ...]

  def __post_init__(self):
    _check_integers('nodes', self.nodes, _MOST)
    _check_integers('batches', self.batches, _MOST)
    _check_integers('contexts', self.contexts)
    _check_integers('compile_nodes', self.compile_nodes, _MOST)
    _check_acceptance(self.acceptance)
    if not (self.nodes or self.compile_nodes):
      return
    for name in ('batches', 'contexts', 'acceptance'):
      if not getattr(self, name):
        raise UserError(f'prices.{name}: got none, expected one or more')
    largest = max(*self.nodes, *self.compile_nodes, 0)
    if largest > min(self.contexts):
      raise UserError(
        f'prices.nodes: got {largest}, expected at most the shortest context, '
        f'{min(self.contexts)}'
      )

  def trees(self) -> Iterable[tuple[TokenTree, int, int]]:
    """Trees to compile passes of, each with its context and batch."""
    for num_nodes in self.compile_nodes:
      chances = self.acceptance[0][1]
      tree = tree_search.best_tree(chances, num_nodes, _DEPTH)
      for batch in dict.fromkeys((self.batches[0], self.batches[-1])):
        yield tree, self.contexts[0], batch


def _check_integers(name: str, values: Any, most: int = 2**31 - 1) -> None:
  """Refuses what is no tuple of whole numbers from 1 on."""
  for value in values if isinstance(values, list | tuple) else (None,):
    if type(value) is not int or not 1 <= value <= most:
      raise UserError(
        f'prices.{name}: got {values!r}, expected whole numbers from 1 to '
        f'{most}'
      )


def _check_acceptance(entries: Any) -> None:
  for entry in entries if isinstance(entries, list | tuple) else (entries,):
    try:
      name, chances = entry
      if type(name) is not str or not chances:
        raise ValueError('expected (name, (chance, ..))')
      tree_search.expected_tokens(TokenTree.chain(0), chances)
    except (TypeError, ValueError) as error:
      raise UserError(
        f'prices.acceptance: got {entry!r}, expected (name, (chance, ..)): '
        f'{error}'
      ) from None


class BestTree(NamedTuple):
  """The static tree of the most tokens a millisecond.

  Attributes:
    tree: its shape.
    tau: expected tokens of a round, the bonus token included.
    ms_per_token: milliseconds of a round / tau.
    speedup: over autoregressive sampling.
  """

  tree: TokenTree
  tau: float
  ms_per_token: float
  speedup: float


@dataclasses.dataclass(frozen=True)
class Price:
  """What passes cost on a slice, at a batch and a context.

  Attributes:
    topology: the name of the slice.
    batch: B, rows.
    context: S, slots of the caches.
    pass_ms: milliseconds of a pass over N nodes of each row, by N.
    free_nodes: how many of each row are multiplied while bytes are read.
    best: by the name of an acceptance, the best chain and the best tree.
  """

  topology: str
  batch: int
  context: int
  pass_ms: Mapping[int, float]
  free_nodes: int
  best: Mapping[str, tuple[Point, BestTree]]


def price(
  target: TransformerConfig,
  draft: TransformerConfig,
  where: Topology,
  config: PriceConfig,
  context: int,
  batch: int,
) -> Price:
  """The price of a slice; `tree_search.fastest_tree` finds its trees.

  Args:
    target: scores.
    draft: drafts, one pass a level.
    where: all of its chips run every pass.
    config: sizes and acceptance.
    context: S, slots of the caches.
    batch: B, rows.

  Raises:
    UserError: heads or hidden units do not divide into the chips.
  """
  time = lambda model, nodes: _time(model, where, nodes, context, batch)
  free = free_nodes(time(target, 1)[0])
  # Chains of every length are trees too; the list shows `config.nodes` alone.
  sizes = {*config.nodes, *range(1, _DEPTH + 2)}
  sizes |= {free} if 1 <= free <= max(sizes) else set()
  pass_ms = {n: _total(time(target, n)) for n in sorted(sizes)}
  draft_ms = _total(time(draft, 1))
  best = {}
  for name, chances in config.acceptance:
    chain = speculation.best(
      speculation.curve(
        chances[0], draft_ms, lambda gamma: pass_ms[gamma + 1], pass_ms[1]
      )
    )
    best[name] = chain, best_tree(chances, pass_ms, draft_ms)
  return Price(where.name, batch, context, pass_ms, free, best)


def best_tree(
  chances: Sequence[float], pass_ms: Mapping[int, float], draft_ms: float
) -> BestTree:
  """The fastest static tree, no deeper than the longest chain.

  Args:
    chances: [K], that the child of rank k is the accepted one.
    pass_ms: milliseconds of a pass over N nodes, by N; 1 among them.
    draft_ms: milliseconds to draft a level.
  """
  tree, rate = tree_search.fastest_tree(chances, pass_ms, draft_ms, _DEPTH)
  tau = tree_search.expected_tokens(tree, chances)
  return BestTree(tree, tau, 1 / rate, pass_ms[1] * rate)


def free_nodes(of_one: latency.Time) -> int:
  """Nodes of each row until arithmetic takes longer than bytes.

  Args:
    of_one: the time of a pass over one node of each row; arithmetic grows with
      the nodes, what is read does not.
  """
  return int(of_one.memory / of_one.compute)


def _time(
  model: TransformerConfig,
  where: Topology,
  nodes: int,
  context: int,
  batch: int,
) -> tuple[latency.Time, float]:
  """Of a pass, and milliseconds of what is made of its logits."""
  shape = dict(shards=where.num_chips, tokens=nodes, batch=batch)
  taken = work.of_pass(model, context=context, **shape)
  num_bytes = _LOGIT_PASSES * work.logit_bytes(model, **shape)
  logits_ms = 1e3 * num_bytes / where.chip.hbm_bandwidth
  return latency.predict(taken, where), logits_ms


def _total(time: tuple[latency.Time, float]) -> float:
  return time[0].total + time[1]


def price_rows(
  prices: Sequence[Price], nodes: Sequence[int]
) -> list[dict[str, Any]]:
  """Milliseconds of a pass by N, a row for each slice, batch and context."""
  return [
    _where(each)
    | {f'N={n} ms': each.pass_ms[n] for n in nodes}
    | {'free nodes': each.free_nodes}
    for each in prices
  ]


def draft_rows(prices: Sequence[Price]) -> list[dict[str, Any]]:
  """The best chain and the best static tree at each acceptance."""
  return [
    _where(each)
    | {
      'acceptance': name,
      'chain': f'γ={chain.gamma}',
      'chain ms/token': chain.ms_per_token,
      'chain speedup': chain.speedup,
      'tree nodes': best.tree.size,
      'depth': best.tree.depth,
      'τ': best.tau,
      'tree ms/token': best.ms_per_token,
      'tree speedup': best.speedup,
    }
    for each in prices
    for name, (chain, best) in each.best.items()
  ]


def tree_rows(prices: Sequence[Price]) -> list[dict[str, Any]]:
  """The parents of every best tree, for `TokenTree`."""
  return [
    _where(each) | {'acceptance': name, 'parents': best.tree.parents}
    for each in prices
    for name, (_, best) in each.best.items()
  ]


def _where(price: Price) -> dict[str, Any]:
  fields = ('topology', 'batch', 'context')
  return {name: getattr(price, name) for name in fields}


def note() -> str:
  """What the prices are made of."""
  return NOTE.format(passes=_LOGIT_PASSES)


def shapes(config: PriceConfig) -> Iterable[tuple[int, int]]:
  """Every batch and context of the list."""
  if config.nodes:
    yield from itertools.product(config.batches, config.contexts)
