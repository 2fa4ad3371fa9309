"""Price list of draft trees: times of passes over N nodes, and best drafts.

All prices are predicted: the roofline of `latency`, plus the reads and writes
of the logits of all nodes.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.figure

from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.models import TransformerConfig
from specsamp.planning import latency, speculation, tree_search, work
from specsamp.planning.topology import Topology

# Acceptance by rank of the embedded pair under the multi-candidate rule without
# replacement, on 12 held-out functions of 128 tokens. This command writes the
# figures in its first minute, to acceptance-0.json and acceptance-1.json:
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

# Number of reads and writes of arrays as large as the logits, counted in the
# kernels that XLA compiles for an H100 for rounds under the multi-candidate
# rule (8 rows of 32 nodes, 32,000 tokens). With a nucleus there are 42: 1 to
# write the logits, 7 to weigh them, 20 to find the nucleus, and 14 to verify. A
# greedy round has 25, thus 11 without verification. Every sampling without a
# nucleus is charged as greedy.
_VERIFY_PASSES = 14
_SAMPLE_PASSES = {True: 1 + 7 + 20, False: 25 - _VERIFY_PASSES}

NOTE = (
  'The price list is predicted. Free nodes: number of nodes per row whose '
  'arithmetic takes no longer than reading weights and caches. Time for '
  'messages and logits grows with every node. The logits, float32 [B, N, V], '
  'are read or written 42 times with a nucleus and 25 times without; 28 and 11 '
  'times at N=1 and in the draft, where no draft is verified. Milliseconds by '
  'N are those of the most expensive sampling, and empty if weights, caches '
  'and one copy of the logits do not fit. A level of a tree is charged as a '
  'pass of the draft over one token, whatever its width.'
)

_MAX_NODES = 1024  # the search takes time with the square
_MAX_DEPTH = max(speculation.GAMMAS)


@dataclasses.dataclass(frozen=True)
class PriceConfig:
  """Entries of the price list.

  Attributes:
    nodes: sizes of a token tree, the root included; () omits the list.
    batches: numbers of rows.
    contexts: cache slots.
    acceptance: acceptance by sampling, ((name, has_nucleus, (probability,
      ..)), ..), with the probability that the child of rank k is accepted.
  """

  nodes: tuple[int, ...] = (1, 8, 16, 32, 64, 128)
  batches: tuple[int, ...] = (1, 8, 32)
  contexts: tuple[int, ...] = (2048,)
  acceptance: tuple[tuple[str, bool, tuple[float, ...]], ...] = EMBEDDED_PAIR

  def __post_init__(self):
    for name, maximum in (
      ('batches', 2**31 - 1),
      ('contexts', 2**31 - 1),
      ('nodes', min((_MAX_NODES, *self.contexts))),
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


@dataclasses.dataclass(frozen=True)
class Price:
  """Costs of passes on a slice, at a batch and a context.

  Attributes:
    topology: name of the slice.
    batch: B, rows.
    context: S, cache slots.
    pass_ms: by N, milliseconds of a pass over N nodes per row under the most
      expensive sampling. An N that does not fit is missing.
    free_nodes: number of nodes per row whose arithmetic is hidden by reads.
    drafts: cells of `best_drafts` by the name of a sampling.
  """

  topology: str
  batch: int
  context: int
  pass_ms: Mapping[int, float]
  free_nodes: int
  drafts: Mapping[str, Mapping[str, Any]]

  @property
  def key(self) -> dict[str, Any]:
    """The first cells of the price's rows in a table."""
    fields = ('topology', 'batch', 'context')
    return {name: getattr(self, name) for name in fields}


def price(
  target: TransformerConfig,
  draft: TransformerConfig,
  topology: Topology,
  config: PriceConfig,
  context: int,
  batch: int,
  free_bytes: int,
) -> Price:
  """Returns the price of a slice with its best chains and trees.

  Args:
    target: target model.
    draft: draft model, which runs one pass per level.
    topology: chips that run every pass together.
    config: sizes and acceptance.
    context: S, cache slots.
    batch: B, rows.
    free_bytes: bytes of a chip that weights and caches leave for the target's
      logits.

  Raises:
    UserError: the logits of a draft of one token do not fit.
  """
  shards = topology.num_chips

  def time(model: TransformerConfig, nodes: int) -> latency.Time:
    model_pass = work.of_pass(
      model, shards=shards, tokens=nodes, context=context, batch=batch
    )
    return latency.predict(model_pass, topology)

  def logit_bytes(model: TransformerConfig, nodes: int) -> int:
    # A vocabulary that does not divide into the chips is whole on each.
    vocab = model.vocab_size
    return 4 * batch * nodes * (vocab if vocab % shards else vocab // shards)

  def logits_ms(model: TransformerConfig, nodes: int, nucleus: bool) -> float:
    # A pass over one node verifies nothing.
    passes = _SAMPLE_PASSES[nucleus] + _VERIFY_PASSES * (nodes > 1)
    num_bytes = passes * logit_bytes(model, nodes)
    return 1e3 * num_bytes / topology.chip.hbm_bandwidth

  if logit_bytes(target, 2) > free_bytes:
    raise UserError(f'{topology.name}: the logits do not fit')
  # Arithmetic grows with the nodes, reads do not.
  one = time(target, 1)
  free = int(one.memory / one.compute)
  # Chains of every length are trees too; tables show `config.nodes` only.
  sizes = {*config.nodes, *range(1, _MAX_DEPTH + 2)}
  sizes |= {free} if 1 <= free <= max(sizes) else set()
  target_ms = {
    n: time(target, n).total
    for n in sorted(sizes)
    if logit_bytes(target, n) <= free_bytes
  }
  draft_ms = time(draft, 1).total

  def pass_ms(nucleus: bool) -> dict[int, float]:
    return {
      n: ms + logits_ms(target, n, nucleus) for n, ms in target_ms.items()
    }

  drafts = {
    name: best_drafts(
      chances, pass_ms(nucleus), draft_ms + logits_ms(draft, 1, nucleus)
    )
    for name, nucleus, chances in config.acceptance
  }
  most_expensive = pass_ms(any(nucleus for _, nucleus, _ in config.acceptance))
  return Price(topology.name, batch, context, most_expensive, free, drafts)


def best_drafts(
  chances: Sequence[float], pass_ms: Mapping[int, float], draft_ms: float
) -> dict[str, Any]:
  """Returns the cells of the fastest chain and of the fastest static tree.

  The tree is no deeper than the longest chain.

  Args:
    chances: [K], probability that the child of rank k is the accepted one.
    pass_ms: milliseconds of a pass over N nodes, by N, which includes 1 and 2.
    draft_ms: milliseconds to draft a level.
  """
  chain = speculation.best(
    speculation.curve(
      chances[0],
      draft_ms,
      lambda gamma: pass_ms.get(gamma + 1, math.inf),
      pass_ms[1],
    )
  )
  tree, rate = tree_search.fastest_tree(chances, pass_ms, draft_ms, _MAX_DEPTH)
  return {
    'chain': f'γ={chain.gamma}',
    'chain ms/token': chain.ms_per_token,
    'chain speedup': chain.speedup,
    'tree nodes': tree.size,
    'depth': tree.depth,
    'τ': tree_search.expected_tokens(tree, chances),
    'tree ms/token': 1 / rate,
    'tree speedup': pass_ms[1] * rate,
  }


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
  """Returns the best chain and the best static tree at each acceptance."""
  return [
    price.key | {'acceptance': name} | cells
    for price in prices
    for name, cells in price.drafts.items()
  ]


def plot(prices: Sequence[Price], path: pathlib.Path) -> None:
  """Draws milliseconds of a pass by nodes, at the longest context.

  A star marks the last node whose arithmetic is hidden by reads.
  """
  longest = max(price.context for price in prices)
  slices = list(dict.fromkeys(price.topology for price in prices))
  figure = matplotlib.figure.Figure(
    figsize=(3.2 * len(slices), 3.2), layout='constrained'
  )
  panels = figure.subplots(1, len(slices), sharey=True, squeeze=False)[0]
  for panel, name in zip(panels, slices, strict=True):
    for price in prices:
      if (price.topology, price.context) == (name, longest):
        sizes, ms = zip(*price.pass_ms.items(), strict=True)
        knees = [i for i, n in enumerate(sizes) if n == price.free_nodes]
        style = dict(marker='*', markersize=11, markevery=knees)
        panel.plot(sizes, ms, label=f'batch {price.batch}', **style)
    panel.set_xscale('log', base=2)
    panel.set_yscale('log')
    panel.set_xlabel('nodes N')
    panel.set_title(name)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
  panels[0].set_ylabel('pass (ms)')
  figure.savefig(path, dpi=100)
