"""A drafter for the embedded target, trained in the smallest size."""

import json

from specsamp import zoo
from specsamp.checkpoints import drafter_dir
from specsamp.drafting.trained import trained_drafter


def test_a_drafter_for_the_embedded_target(launch, tmp_path):
  workdir = tmp_path / 'run'
  ended = launch(
    'distill',
    '--config=configs/distill_pycode.py:smoke',
    '--config.corpus=tests',
    f'--config.features={tmp_path}/features',
    f'--workdir={workdir}',
  )
  assert ended.code == 0, ended.err
  assert sorted(path.name for path in workdir.iterdir()) == [
    'checkpoints',
    'config.json',
    'drafter',
    'metrics.jsonl',
  ]
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  assert [(line['kind'], line['step']) for line in lines] == [
    ('train', 1),
    ('train', 2),
    ('validation', 2),
    ('train', 3),
    ('train', 4),
    ('validation', 4),
  ]
  drafter, loss = workdir / 'drafter', lines[-1]['loss']
  assert ended.out == f'{drafter}: 4 steps, held-out loss {loss:.3f}\n'
  steps = [path.name for path in (workdir / 'checkpoints').iterdir()]
  assert sorted(steps) == ['2', '4']
  trained = drafter_dir.load(workdir / 'drafter')
  target = zoo.load('pycode').target
  drafter = trained_drafter(trained, target, 3)
  drafter.check(target, 1)
  assert drafter.tree.depth == 3
