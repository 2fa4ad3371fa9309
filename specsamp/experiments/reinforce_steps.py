"""What the steps of a policy gradient leave: a line each, and a report."""

import json
import pathlib
from typing import NamedTuple

from specsamp.errors import UserError
from specsamp.evaluation.reporting import plots, report, tables
from specsamp.utils import files


class Step(NamedTuple):
  """One step of the optimizer.

  Attributes:
    number: from 1.
    reward: mean of the rollouts it was made on.
    tau: tokens a round of these, τ; None if they had no draft.
    same: how many of them are the same without a draft; None if none were
      drawn without.
    rollouts: how many there are.
    logprob_gap: the largest difference between a token's log-probability from
      its rollout and from the trainer's pass.
    seconds: that the rollouts took.
    plain_seconds: without a draft, or None.
    compiled: programs that were compiled in it for either.
  """

  number: int
  reward: float
  tau: float | None
  same: int | None
  rollouts: int
  logprob_gap: float
  seconds: float
  plain_seconds: float | None
  compiled: int


class Metrics:
  """The file of steps; those past a resumed run's checkpoint are dropped.

  Raises:
    UserError: it lacks steps before the checkpoint.
  """

  def __init__(self, path: pathlib.Path, begun: int):
    self._path = path
    lines = files.read_lines(
      path,
      lambda line: files.has_shape(line, _LINE),
      key=lambda line: line['number'],
    )
    kept = [line for line in lines.kept if line['number'] <= begun]
    if len(kept) < begun:
      raise UserError(
        f'{path}: got {len(kept)} of the steps before the checkpoint of step '
        f'{begun}, expected all; without checkpoints the run begins anew'
      )
    lines.rewrite(kept)
    self.steps = [Step(*map(line.get, Step._fields)) for line in kept]

  def add(self, step: Step) -> None:
    self.steps.append(step)
    with self._path.open('a') as file:
      file.write(json.dumps(step._asdict()) + '\n')


_LINE = {
  'number': int,
  'reward': float,
  'tau': (float, None),
  'same': (int, None),
  'rollouts': int,
  'logprob_gap': float,
  'seconds': float,
  'plain_seconds': (float, None),
  'compiled': int,
}


def write_report(
  workdir: pathlib.Path, steps: list[Step], is_stale: bool
) -> None:
  """Writes summary.json, report.md and steps.png, and prints the table.

  Args:
    workdir: folder.
    steps: at least one.
    is_stale: the drafter was trained for the policy before it moved.
  """
  is_drafted = steps[0].tau is not None
  is_compared = steps[0].same is not None
  name = 'with a draft' if is_drafted else 'without'
  seconds = {name: [step.seconds for step in steps]}
  if is_compared:
    seconds['without'] = [step.plain_seconds for step in steps]
  curves = {
    'mean reward': {'': [step.reward for step in steps]},
    'seconds of the rollouts': seconds,
  }
  if is_drafted:
    taus = {'': [step.tau for step in steps]}
    curves = {'block efficiency τ': taus, **curves}
  plots.curves(curves, 'step', workdir / 'steps.png')
  same = sum(step.same for step in steps) if is_compared else None
  count = sum(step.rollouts for step in steps)
  compiled = sum(step.compiled for step in steps)
  gap = max(step.logprob_gap for step in steps)
  note = f'{tables.count(count, "rollout")} in '
  note += f'{tables.count(len(steps), "step")}: '
  if is_compared:
    note += f'{same} the same with and without a draft, '
  note += (
    f'{tables.count(compiled, "program")} compiled for them since the warm-up, '
    f'log-probabilities within {gap:.1e} of those of the trainer.'
  )
  if is_stale:
    note += ' The drafter was trained for the policy before it moved.'
  cells = [
    {
      'step': step.number,
      'reward': step.reward,
      **({'τ': step.tau} if is_drafted else {}),
      **({'same': f'{step.same} of {step.rollouts}'} if is_compared else {}),
      'rollouts s': step.seconds,
      **({'without a draft s': step.plain_seconds} if is_compared else {}),
    }
    for step in steps
  ]
  summary = {
    'steps': [step._asdict() for step in steps],
    'same': same,
    'rollouts': count,
    'compiled': compiled,
    'is_stale': is_stale,
    'device': report.device(),
    'versions': report.versions(),
  }
  files.replace_json(workdir / 'summary.json', summary)
  table = lambda style: tables.render(cells, style)
  files.replace(
    workdir / 'report.md',
    f'# Policy gradient on rollouts\n\n{table("github")}\n\n{note}'
    f'\n\n![steps](steps.png)\n\nOn {report.device()}.\n',
  )
  print(f'{table("simple")}\n\n{note}\n\nReport: {workdir / "report.md"}')
