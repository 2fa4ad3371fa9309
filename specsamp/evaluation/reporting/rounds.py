"""Where the time of a round goes, drawn as a trace."""

import pathlib
from collections.abc import Sequence

import matplotlib.figure

from specsamp.evaluation.reporting import plots
from specsamp.evaluation.timing import RoundCost

IMAGE = 'rounds.png'
_ROUNDS = 2
_PARTS = {'draft': 'tab:orange', 'score': 'tab:blue', 'verify': 'tab:green'}


def trace(
  costs: Sequence[RoundCost], path: pathlib.Path, caption: str = ''
) -> None:
  """Two rounds of each method: draft, score, verify and all else.

  The right half of figure 1 of Xiao et al. 2410.05589. The parts are medians,
  each timed in a loop of its own; what a round takes beyond draft and score is
  shown as verifying.
  """
  costs = [cost for cost in costs if cost.row]
  figure = matplotlib.figure.Figure(
    figsize=(10, 1.3 + 0.3 * len(costs)), layout='constrained'
  )
  panel = figure.subplots()
  for place, cost in enumerate(costs):
    start = 0.0
    for _ in range(_ROUNDS):
      rest = max(cost.round_ms - cost.draft_ms - cost.score_ms, 0)
      for (name, color), length in zip(
        _PARTS.items(), (cost.draft_ms, cost.score_ms, rest), strict=True
      ):
        panel.barh(
          place, length, left=start, height=0.6, color=color,
          label=name if place == 0 and start < cost.round_ms else None,
        )  # fmt: skip
        start += length
      panel.plot([start] * 2, [place - 0.42, place + 0.42], color='black')
    tokens = _ROUNDS * cost.row.block_efficiency
    panel.annotate(
      f'{tokens:.1f} tokens', (start, place), fontsize=8, xytext=(4, 0),
      va='center', textcoords='offset points',
    )  # fmt: skip
  names = [
    f'{c.row.method_name}, {c.draft_name}, {c.sampling_name}' for c in costs
  ]
  panel.set_yticks(range(len(costs)), names, fontsize=8)
  panel.set_ylim(len(costs) - 0.4, -0.6)
  panel.margins(x=0.12)
  panel.set_xlabel(f'ms, {_ROUNDS} rounds')
  # Beside the panel: a long round reaches its every corner.
  figure.legend(fontsize=8, loc='outside upper right', ncols=len(_PARTS))
  plots.save(figure, path, caption)
