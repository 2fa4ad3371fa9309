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
    costs: measured rounds of the fastest draft, one for each sampling.
  """
  sentences = []
  for cost in costs:
    group = [
      row
      for row in rows
      if (row.task, row.sampling_name) == (rows[0].task, cost.sampling_name)
    ]
    plain = [row for row in group if row.is_baseline]
    drafts = [row for row in group if not row.is_baseline and row.speedup]
    if not plain or not drafts or max(row.speedup for row in drafts) >= 1:
      continue
    timed = [row for row in drafts if row.tree == cost.tree]
    best = max(timed or drafts, key=lambda row: row.speedup)
    text = sentence(
      cost.tree.size,
      plain[0].round_ms,
      cost.score_ms,
      best.round_ms,
      best.block_efficiency,
    )
    sentences.append(f'{cost.sampling_name}: no draft gained; {text}.')
  return sentences
