"""Speedups on accelerators, predicted from tokens per round measured elsewhere.

τ depends on models and texts, not on the machine. The time of a round does: it
is predicted for published shapes, by the roofline of `latency`. A draft model
has the costs of Llama's, and a trained drafter those of one layer of a 7B.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specsamp.drafting.draft import DynamicTree
from specsamp.drafting.drafter import Drafter
from specsamp.drafting.features import FeatureDrafter, OnePassDrafter
from specsamp.drafting.language_model import LanguageModelDrafter
from specsamp.drafting.ngram import NgramDrafter
from specsamp.models import TransformerConfig, presets
from specsamp.planning import latency, topology, work

_CONTEXT = 2048  # cache slots


class Shapes(NamedTuple):
  """Models whose costs stand for others on a slice.

  Attributes:
    topology: name of the slice.
    target: the target.
    draft: a draft model, or a layer of the target with its LM head.
  """

  topology: str
  target: TransformerConfig
  draft: TransformerConfig


_70B, _8B = presets.llama31_70b(), presets.llama31_8b()
_1B, _7B = presets.llama32_1b(), presets.llama_7b()
_LAYER = _7B.for_drafter(1)
MODELS = {
  'v5e': Shapes('v5e:4x4', _70B, _8B),
  'v5p': Shapes('v5p:2x2x2', _70B, _8B),
  'h100:1': Shapes('h100:1', _8B, _1B),
}
LAYERS = {
  'v5e': Shapes('v5e:2x2', _7B, _LAYER),
  'v5p': Shapes('v5p:2x2x1', _7B, _LAYER),
  'h100:1': Shapes('h100:1', _7B, _LAYER),
}
NOTE = (
  'τ is measured, the time of a round is predicted (`launch/plan.py` has the '
  'constants), for one row and 2,048 cache slots. Draft models and n-grams: '
  'Llama 3.1 70B and 8B on v5e:4x4 and v5p:2x2x2, Llama 3.1 8B and Llama 3.2 '
  '1B on h100:1. Trained drafters: a 7B and one of its layers on v5e:2x2, '
  'v5p:2x2x1 and h100:1.'
)


def draft_passes(drafter: Drafter) -> list[int] | None:
  """Returns the tokens of each pass of a draft, or None if they are unknown.

  A level of a tree is a pass over its nodes that have children. The passes of a
  draft that is made of the target's weights cost more than those of `MODELS`.
  The LM head that Hydra and TreeFlash run in each level is counted once.
  """
  if isinstance(drafter, NgramDrafter):
    return []  # a search of the text
  if not isinstance(drafter, (FeatureDrafter, LanguageModelDrafter)):
    return None
  if getattr(drafter, 'of_target', False):
    return None
  tree = drafter.tree
  if isinstance(drafter, OnePassDrafter):
    return [tree.depth]
  if isinstance(tree, DynamicTree):
    return [1, *[tree.max_children] * (tree.depth - 1)]
  depths = [tree.depths[node] for node in tree.internal]
  return [depths.count(depth) for depth in range(tree.depth)]


def speedups(drafter: Drafter, tau: float) -> dict[str, float]:
  """Returns the predicted speedups by chip; none if its passes are unknown."""
  drafted = draft_passes(drafter)
  if drafted is None:
    return {}
  by_chip = LAYERS if isinstance(drafter, FeatureDrafter) else MODELS
  return {
    chip: speedup(shapes, tau, drafter.tree.size, drafted)
    for chip, shapes in by_chip.items()
  }


def speedup(
  shapes: Shapes, tau: float, nodes: int, drafted: Sequence[int]
) -> float:
  """Returns the speedup over autoregressive decoding of one row.

  Args:
    shapes: models and chips whose costs are used.
    tau: τ, tokens per round.
    nodes: nodes of a token tree that the target scores, the root included.
    drafted: see `draft_passes`.
  """
  where = topology.parse(shapes.topology)

  def milliseconds(model: TransformerConfig, tokens: int) -> float:
    model_pass = work.of_pass(
      topology.as_computed(model, where),
      shards=where.num_chips,
      tokens=tokens,
      context=_CONTEXT,
    )
    return latency.predict(model_pass, where).total

  round_ms = milliseconds(shapes.target, nodes)
  round_ms += sum(milliseconds(shapes.draft, tokens) for tokens in drafted)
  return tau * milliseconds(shapes.target, 1) / round_ms
