"""The τ from which a draft gains, given what passes cost on this machine."""

from specsamp.evaluation.metrics import Row
from specsamp.evaluation.timing import RoundCost


def sentence(
  nodes: int,
  plain_ms: float,
  score_ms: float | None,
  round_ms: float,
  tau: float,
) -> str:
  """Returns what a round costs in plain steps, and the τ needed to gain.

  Args:
    nodes: tokens of the target's pass, the root included.
    plain_ms: milliseconds of a step of plain decoding.
    score_ms: milliseconds of the target's pass over the nodes; None if rounds
      differ in their nodes.
    round_ms: milliseconds of a whole round, on average.
    tau: τ that was reached.
  """
  needed = round_ms / plain_ms
  text = f'a round costs {needed:.1f} steps here'
  if score_ms is not None:
    text = (
      f'a pass over {nodes} tokens costs {score_ms / plain_ms:.1f} steps here, '
      f'a round with its draft {needed:.1f}'
    )
  text += (
    f'; τ above {needed:.1f} would be needed to gain, and it was {tau:.2f}'
  )
  if tau > needed:  # τ counts tokens that are cut, and no prompt pass
    text += (
      '; prompt passes and tokens cut at the end cost more than that gains'
    )
  return text


def losses(rows: list[Row], costs: list[RoundCost]) -> list[str]:
  """Returns a sentence for each sampling in which no draft gained.

  Args:
    rows: of `metrics.summarize`; those of the first task count.
    costs: measured rounds of the fastest draft, one for each sampling; none of
      drafts whose rounds differ.
  """
  rows = [row for row in rows if row.task == rows[0].task]
  score_ms = {(cost.sampling_name, cost.tree): cost.score_ms for cost in costs}
  sentences = []
  for plain in filter(lambda row: row.is_baseline, rows):
    drafts = [
      row
      for row in rows
      if row.sampling_name == plain.sampling_name and row.tree.depth
    ]
    best = max(drafts, key=lambda row: row.speedup or 0, default=None)
    if best is None or not best.speedup or best.speedup >= 1:
      continue
    text = sentence(
      best.tree.size,
      plain.round_ms,
      score_ms.get((best.sampling_name, best.tree)),
      best.round_ms,
      best.block_efficiency,
    )
    sentences.append(f'{plain.sampling_name}: no draft gained; {text}.')
  return sentences
