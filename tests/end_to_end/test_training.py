"""`launch/pretrain.py` and `launch/distill.py` in their smallest size."""

import json

import pytest
from testing import shallow
from testing.launching import run_here

from specsamp import zoo
from specsamp.checkpoints import drafter_dir, model_dir
from specsamp.drafting.trained import trained_drafter


@pytest.mark.parametrize(
  ('name', 'made', 'flags'),
  [
    ('pretrain', 'model', ['steps=4', 'eval_every=2', 'checkpoint_every=2']),
    ('distill', 'drafter', []),
  ],
)
def test_training(name, made, flags, tmp_path, monkeypatch):
  load = shallow.zoo_load()
  monkeypatch.setattr(zoo, 'load', load)
  workdir = tmp_path / 'run'
  ended = run_here(
    name,
    f'--config=configs/{name}_pycode.py:smoke',
    '--config.corpus=configs',
    '--config.log_every=1',
    *(f'--config.{flag}' for flag in flags),
    f'--workdir={workdir}',
  )
  assert ended.code == 0, ended.err
  assert {path.name for path in workdir.iterdir()} >= {
    'checkpoints', 'config.json', made, 'metrics.jsonl',
  }  # fmt: skip
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
  loss = lines[-1]['loss']
  line = f'{workdir / made}: 4 steps, held-out loss {loss:.3f}'
  assert ended.out.splitlines()[-1] == line
  steps = [path.name for path in (workdir / 'checkpoints').iterdir()]
  assert sorted(steps) == ['2', '4']
  if name == 'pretrain':
    assert model_dir.load(workdir / made).num_params > 10_000
  else:
    trained = drafter_dir.load(workdir / made)
    trained_drafter(trained, load('pycode').target, 3)
