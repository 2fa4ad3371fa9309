"""What a slice asks for a draft: passes over N nodes, and the best trees.

A price is predicted, whatever was measured: the roofline of `latency`, and
what is made of the logits of all nodes.
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
# multi-candidate rule without replacement; acceptance-0.json and
# acceptance-1.json of a minute of
#   python launch/evaluate.py --config=configs/papers/mcsd/best_tree.py \
#     --config.top_p=0.95 --workdir=runs/acceptance
# which may be stopped once they are there.
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

NOTE = (
  'Price list: predicted, all of it. Free nodes: as many of each row as are '
  'multiplied while weights and caches are read; the rest of a pass grows with '
  'N before that, messages and what is made of the logits: {} reads or writes '
  'of float32 [B, N, V] with a nucleus and {} without, but {} and {} where one '
  'token is sampled and no draft verified, at N=1 and in the draft. The '
  'milliseconds by N are of the dearest sampling listed; - where weights, '
  'caches and one copy of these logits do not fit. A level of a tree is '
  'charged as a pass of the draft over one token, whatever its width.'
)

# Reads and writes of arrays as large as the logits, as counted over the kernels
# of what XLA compiles for an H100 of rounds under the multi-candidate rule (8
# rows of 32 nodes, 32,000 tokens). With a nucleus there are 42: 1 to write the
# logits, 7 to weigh them, 20 to find the nucleus, and 14 to verify. A greedy
# round has 25 in all, so 11 but for verifying; any sampling without a nucleus
# is charged as greedy.
_VERIFY_PASSES = 14
_SAMPLE_PASSES = {True: 1 + 7 + 20, False: 25 - _VERIFY_PASSES}

_MOST = 1024  # nodes, rows; the search takes time with the square
_DEPTH = max(speculation.GAMMAS)


@dataclasses.dataclass(frozen=True)
class PriceConfig:
  """Passes whose times a price list predicts.

  Attributes:
    nodes: sizes of a token tree, the root included; () leaves the list out.
    batches: numbers of rows.
    contexts: slots of the caches.
    acceptance: acceptance of samplings, ((name, has_nucleus, (chance, ..)),
      ..): True if the sampling has a nucleus, and the chance that the child of
      rank k is accepted.
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
      chances = self.acceptance[0][2]
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
      name, has_nucleus, chances = entry
      if type(name) is not str or type(has_nucleus) is not bool or not chances:
        raise ValueError('a name, True or False, and one chance or more')
      tree_search.expected_tokens(TokenTree.chain(0), chances)
    except (TypeError, ValueError) as error:
      raise UserError(
        f'prices.acceptance: got {entry!r}, expected (name, has_nucleus, '
        f'(chance, ..)): {error}'
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
    pass_ms: milliseconds of a pass over N nodes of each row, by N, under the
      dearest sampling; of those N that fit.
    free_nodes: how many of each row are multiplied while bytes are read.
    best: by the name of an acceptance, the best chain and the best tree; no
      chain where none fits, None where no pass does.
  """

  topology: str
  batch: int
  context: int
  pass_ms: Mapping[int, float]
  free_nodes: int
  best: Mapping[str, tuple[Point | None, BestTree] | None]


def price(
  target: TransformerConfig,
  draft: TransformerConfig,
  where: Topology,
  config: PriceConfig,
  context: int,
  batch: int,
  room: int,
) -> Price:
  """The price of a slice; `tree_search.fastest_tree` finds its trees.

  Args:
    target: scores.
    draft: drafts, one pass a level.
    where: all of its chips run every pass.
    config: sizes and acceptance.
    context: S, slots of the caches.
    batch: B, rows.
    room: bytes of a chip beside weights and caches, for the target's logits.

  Raises:
    UserError: heads or hidden units do not divide into the chips.
  """
  time = lambda model, nodes: _time(model, where, nodes, context, batch)
  made = lambda model, nodes, has_nucleus: _logits_ms(
    model, where, nodes, batch, has_nucleus
  )
  free = free_nodes(time(target, 1))
  # Chains of every length are trees too; the list shows `config.nodes` alone.
  sizes = {*config.nodes, *range(1, _DEPTH + 2)}
  sizes |= {free} if 1 <= free <= max(sizes) else set()
  fits = lambda n: (
    work.logit_bytes(target, shards=where.num_chips, tokens=n, batch=batch)
    <= room
  )
  target_ms = {n: time(target, n).total for n in sorted(sizes) if fits(n)}
  draft_ms = time(draft, 1).total
  best, by_sampling = {}, {}
  for name, has_nucleus, chances in config.acceptance:
    pass_ms = by_sampling[has_nucleus] = {
      n: ms + made(target, n, has_nucleus) for n, ms in target_ms.items()
    }
    level_ms = draft_ms + made(draft, 1, has_nucleus)
    best[name] = None
    if pass_ms:
      best[name] = (
        best_chain(chances[0], pass_ms, level_ms),
        best_tree(chances, pass_ms, level_ms),
      )
  dearest = by_sampling[max(by_sampling)]
  return Price(where.name, batch, context, dearest, free, best)


def best_chain(
  alpha: float, pass_ms: Mapping[int, float], draft_ms: float
) -> Point | None:
  """The fastest chain, None if there is no pass over a draft.

  Args:
    alpha: chance that a drafted token is accepted.
    pass_ms: milliseconds of a pass over N nodes, by N; 1 among them.
    draft_ms: milliseconds to draft a token.
  """
  points = speculation.curve(
    alpha,
    draft_ms,
    lambda gamma: pass_ms.get(gamma + 1, math.inf),
    pass_ms[1],
  )
  points = [point for point in points if point.gamma + 1 in pass_ms]
  return speculation.best(points) if points else None


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
) -> latency.Time:
  shape = dict(shards=where.num_chips, tokens=nodes, batch=batch)
  return latency.predict(work.of_pass(model, context=context, **shape), where)


def _logits_ms(
  model: TransformerConfig,
  where: Topology,
  nodes: int,
  batch: int,
  has_nucleus: bool,
) -> float:
  """Milliseconds of what is made of a pass's logits."""
  shape = dict(shards=where.num_chips, tokens=nodes, batch=batch)
  passes = _logit_passes(has_nucleus, verified=nodes > 1)
  num_bytes = passes * work.logit_bytes(model, **shape)
  return 1e3 * num_bytes / where.chip.hbm_bandwidth


def _logit_passes(has_nucleus: bool, verified: bool) -> int:
  # What has one node is a step without a draft, or one of the draft itself.
  return _SAMPLE_PASSES[has_nucleus] + _VERIFY_PASSES * verified


def price_rows(
  prices: Sequence[Price], nodes: Sequence[int]
) -> list[dict[str, Any]]:
  """Milliseconds of a pass by N, a row for each slice, batch and context.

  None for an N that does not fit.
  """
  return [
    _where(each)
    | {f'N={n} ms': each.pass_ms.get(n) for n in nodes}
    | {'free nodes': each.free_nodes}
    for each in prices
  ]


def draft_rows(prices: Sequence[Price]) -> list[dict[str, Any]]:
  """The best chain and the best static tree at each acceptance.

  None for what a chain that does not fit would have.
  """
  return [
    _where(each) | {'acceptance': name} | _draft_cells(best)
    for each in prices
    for name, best in each.best.items()
  ]


def _draft_cells(
  best: tuple[Point | None, BestTree] | None,
) -> dict[str, Any]:
  if best is None:
    return {'chain': 'not even N=1 fits'}
  chain, tree = best
  return {
    'chain': chain and f'γ={chain.gamma}',
    'chain ms/token': chain and chain.ms_per_token,
    'chain speedup': chain and chain.speedup,
    'tree nodes': tree.tree.size,
    'depth': tree.tree.depth,
    'τ': tree.tau,
    'tree ms/token': tree.ms_per_token,
    'tree speedup': tree.speedup,
  }


def tree_rows(prices: Sequence[Price]) -> list[dict[str, Any]]:
  """The parents of every best tree, for `TokenTree`."""
  return [
    _where(each) | {'acceptance': name, 'parents': best[1].tree.parents}
    for each in prices
    for name, best in each.best.items()
    if best
  ]


def _where(price: Price) -> dict[str, Any]:
  fields = ('topology', 'batch', 'context')
  return {name: getattr(price, name) for name in fields}


def note() -> str:
  """What the prices are made of."""
  return NOTE.format(
    *(
      _logit_passes(has_nucleus, verified)
      for verified in (True, False)
      for has_nucleus in (True, False)
    )
  )


def shapes(config: PriceConfig) -> Iterable[tuple[int, int]]:
  """Every batch and context of the list."""
  if config.nodes:
    yield from itertools.product(config.batches, config.contexts)
