"""A run that is begun twice in one folder: one goes on, the other ends."""

import re

import pytest
from testing.launching import start

pytestmark = pytest.mark.extended

_FLAGS = {
  'pretrain': ['--config=configs/pretrain_pycode.py:smoke'],
  'distill': [
    '--config=configs/distill_pycode.py:smoke',
    '--config.target={folders}/target',
    '--config.length=16',
    '--config.prompt_length=8',
  ],
  'decode': [
    '--config=configs/quickstart.py:smoke',
    '--config.target={folders}/target',
    '--config.draft={folders}/draft',
    '--prompt=x',
    '--config.max_new_tokens=4',
  ],
  'evaluate': [
    '--config=configs/papers/mcsd/figure4.py:smoke',
    '--config.target={folders}/target',
    '--config.draft={folders}/draft',
    '--config.max_new_tokens=4',
  ],
}


@pytest.mark.parametrize(
  'name',
  [
    # One that goes on in its folder, and one that does not; as the others do.
    'pretrain',
    'decode',
    pytest.param('distill', marks=pytest.mark.slow),
    pytest.param('evaluate', marks=pytest.mark.slow),
  ],
)
@pytest.mark.parametrize('times', [1, pytest.param(10, marks=pytest.mark.slow)])
def test_one_goes_on(server, folders, tmp_path, name, times):
  flags = [flag.replace('{folders}', str(folders)) for flag in _FLAGS[name]]
  if name in ('pretrain', 'distill'):
    flags += ['--config.corpus=tests', '--config.steps=2']
  for i in range(times):
    both = []
    for j in range(2):
      (tmp_path / f'{i}{j}').mkdir()
      workdir = f'--workdir={tmp_path}/run{i}'
      both.append(start(server, tmp_path / f'{i}{j}', name, *flags, workdir))
    ended = sorted(one.join(240) for one in both)
    assert [one.code for one in ended] == [0, 2], ended
    # Either the other is at work, or a run that does not resume is there.
    assert re.fullmatch(
      rf'{name}\.py: (folder \S+: {name}\.py \(process \d+ on .* since .*\) is '
      r'writing in it; .*|workdir \S+ holds this run already; .*)\n',
      ended[1].err,
    )
