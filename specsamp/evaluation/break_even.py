"""Smallest τ at which a draft gains, given the cost of passes."""

from specsamp.evaluation.metrics import Row
from specsamp.evaluation.timing import RoundCost


def sentence(
  nodes: int,
  plain_ms: float,
  score_ms: float | None,
  round_ms: float,
  tau: float,
  gained: bool = False,
) -> str:
  """Returns the cost of a round in plain steps, and the τ needed to gain.

  Args:
    nodes: tokens of the target's pass, the root included.
    plain_ms: milliseconds of a step of plain decoding.
    score_ms: milliseconds of the target's pass over the nodes; None if it was
      not measured.
    round_ms: milliseconds of a whole round, on average.
    tau: measured τ.
    gained: True if decoding became faster.
  """
  needed = round_ms / plain_ms
  text = f'a round costs {needed:.1f} steps here'
  if score_ms is not None:
    scoring = score_ms / plain_ms
    text = (
      f'a pass over {nodes} tokens costs {scoring:.1f} steps here, drafting '
      f'and verifying {needed - scoring:.1f}'
    )
  text += f'; τ above {needed:.1f} gains, and it was {tau:.2f}'
  if tau > needed and not gained:  # τ counts tokens that are cut
    text += (
      '; prompt passes and tokens cut at the end cost more than that gains'
    )
  return text


def sentences(
  rows: list[Row], costs: list[RoundCost], method: str
) -> list[str]:
  """Returns a sentence per sampling that explains why its draft gains or not.

  Args:
    rows: rows of `metrics.summarize`; only those of the first task are read.
    costs: measured round costs of one draft, one for each sampling; empty for
      drafts whose rounds differ.
    method: method of that draft.
  """
  rows = [row for row in rows if row.task == rows[0].task]
  score_ms = {(cost.sampling_name, cost.tree): cost.score_ms for cost in costs}

  def score_of(row):
    key = row.sampling_name, row.tree
    return score_ms.get(key) if row.method == method else None

  texts = []
  for plain in filter(lambda row: row.is_baseline, rows):
    drafts = [
      row
      for row in rows
      if row.sampling_name == plain.sampling_name and row.tree.depth
    ]
    if not drafts:
      continue
    best = row = max(drafts, key=lambda row: row.speedup)
    gained = best.speedup >= 1
    measured = list(filter(score_of, drafts))
    if gained and measured:  # explain a measured one
      row = max(measured, key=lambda row: row.speedup)
    text = sentence(
      row.tree.size,
      plain.round_ms,
      score_of(row),
      row.round_ms,
      row.block_efficiency,
      gained,
    )
    start = 'no draft gained;'
    if gained:
      start = (
        f'{best.method} {best.draft_name} is fastest, {best.speedup:.2f} times '
        f'as fast as plain decoding. With {row.method} {row.draft_name}'
      )
    texts.append(f'{plain.sampling_name}: {start} {text}.')
  return texts
