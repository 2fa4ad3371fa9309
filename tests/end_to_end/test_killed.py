"""An experiment that is killed at random moments, and given again."""

import json
import os
import random
import signal
import time

import pytest
from testing.launching import start

_TIMES = ('prefill_seconds', 'decode_seconds')


def _read(workdir):
  """The lines of both files, without what a clock says."""
  found = []
  for name in ('metrics.jsonl', 'scores.jsonl'):
    lines = (workdir / name).read_text().splitlines()
    for line in map(json.loads, lines):
      found.append({k: v for k, v in line.items() if k not in _TIMES})
  return found


def _size(workdir):
  files = (workdir / name for name in ('metrics.jsonl', 'scores.jsonl'))
  return sum(f.stat().st_size for f in files if f.exists())


@pytest.mark.parametrize('kills', [2, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_change_nothing(kills, server, folders, data, tmp_path):
  flags = (
    '--config=configs/papers/chinchilla/table1.py:smoke',
    f'--config.target={folders}/target',
    f'--config.draft={folders}/draft',
    f'--config.data={data}',
    "--config.tasks=('spec_bench/mt_bench', 'spec_bench/qa')",
    '--config.num_prompts=2',
    '--config.samples=2',
    '--config.max_prompt_tokens=40',
  )
  variables = {
    'JAX_COMPILATION_CACHE_DIR': str(tmp_path / 'programs'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  begin = lambda workdir: start(
    server, tmp_path, 'evaluate', *flags, f'--workdir={workdir}',
    variables=variables,
  )  # fmt: skip
  ended = begin(tmp_path / 'whole').join(240)
  assert ended.code == 0, ended.err
  whole, size = _read(tmp_path / 'whole'), _size(tmp_path / 'whole')
  ids = [line['id'] for line in whole]
  assert len(set(ids)) == len(ids)  # none is there twice

  chance = random.Random(0)
  killed, seen = tmp_path / 'killed', []
  for until in sorted(chance.uniform(0, size) for _ in range(kills)):
    started = begin(killed)
    while _size(killed) < until and started.process.is_alive():
      time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.05))
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.join()
    seen.append(_size(killed))
  # It was cut off midway, and more than once.
  assert len({s for s in seen if 0 < s < size}) > kills // 4
  ended = begin(killed).join(240)
  assert ended.code == 0, ended.err
  assert _read(killed) == whole
  names = lambda workdir: sorted(path.name for path in workdir.iterdir())
  assert names(killed) == names(tmp_path / 'whole')

  # What else stands in the files is set aside, and what it replaced done again.
  noise = random.Random(1)
  for name in ('metrics.jsonl', 'scores.jsonl'):
    path = killed / name
    lines = path.read_bytes().split(b'\n')
    lines[1] = lines[1].replace(b'"id": "', b'"id": "x')
    lines[3] = lines[3][:-9] + b'}'
    others = [b'{}', b'5', b'null', b'"x"', b'[' * 10**5, noise.randbytes(40)]
    path.write_bytes(b'\n'.join([*others, *lines[::-1]]))
  ended = begin(killed).join(240)
  assert ended.code == 0, ended.err
  assert 'go to metrics.jsonl.set-aside' in ended.err
  by_id = lambda lines: sorted(lines, key=lambda line: line['id'])
  assert by_id(_read(killed)) == by_id(whole)
  for name in ('metrics.jsonl', 'scores.jsonl'):
    aside = (killed / f'{name}.set-aside').read_bytes().split(b'\n')
    assert set(others) & set(aside) >= set(others[:5])
    assert any(b'"id": "x' in line for line in aside)
