"""The τ from which a draft gains, given what passes cost on this machine."""

from specsamp.evaluation.metrics import Row
from specsamp.evaluation.timing import RoundCost


def sentence(
  nodes: int, plain_ms: float, score_ms: float, round_ms: float, tau: float
) -> str:
  """Returns what a round costs in plain steps, and the τ needed to gain.

  Args:
    nodes: tokens of the target's pass, the root included.
    plain_ms: milliseconds of a step of plain decoding.
    score_ms: milliseconds of the target's pass over the nodes.
    round_ms: milliseconds of a whole round.
    tau: τ that was reached.
  """
  needed = round_ms / plain_ms
  verb = 'gains' if tau > needed else 'does not gain'
  return (
    f'a pass over {nodes} tokens costs {score_ms / plain_ms:.1f} steps here, a '
    f'round with its draft {needed:.1f}; τ above {needed:.1f} would be needed '
    f'to gain, and τ {tau:.2f} {verb}'
  )


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
    told = sentence(
      cost.tree.size,
      plain[0].round_ms,
      cost.score_ms,
      best.round_ms,
      best.block_efficiency,
    )
    sentences.append(f'{cost.sampling_name}: no draft gained; {told}.')
  return sentences
