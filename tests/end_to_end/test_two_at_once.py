"""Two runs in one folder: one continues, the other ends with an error."""

import re

import pytest
from testing.launching import start

pytestmark = pytest.mark.extended

# A launcher that resumes in its folder, and one that does not.
_FLAGS = {
  'pretrain': [
    '--config=configs/pretrain_pycode.py:smoke',
    '--config.corpus=tests',
    '--config.steps=2',
  ],
  'decode': [
    '--config=configs/quickstart.py:smoke',
    '--config.target={folders}/target',
    '--config.draft={folders}/draft',
    '--prompt=x',
    '--config.max_new_tokens=4',
  ],
}


@pytest.mark.parametrize('name', _FLAGS)
def test_one_continues(server, folders, tmp_path, name):
  flags = [flag.replace('{folders}', str(folders)) for flag in _FLAGS[name]]
  flags.append(f'--workdir={tmp_path}/run')
  both = []
  for i in range(2):
    (tmp_path / str(i)).mkdir()
    both.append(start(server, tmp_path / str(i), name, *flags))
  ended = sorted(started.join(240) for started in both)
  assert [each.code for each in ended] == [0, 2], ended
  # Either the other run is active, or it has ended and cannot be resumed.
  assert re.fullmatch(
    rf'{name}\.py: (folder \S+: {name}\.py \(process \d+ on .* since .*\) is '
    r'writing in it; .*|workdir \S+ holds this run already; .*)\n',
    ended[1].err,
  )
