"""An experiment that is killed at random moments, and started again."""

import json
import os
import random
import signal
import time

from testing.launching import start

_TIMES = ('prefill_seconds', 'decode_seconds')


def _read(workdir):
  """Returns the lines of both files, without times."""
  lines_read = []
  for name in ('metrics.jsonl', 'scores.jsonl'):
    lines = (workdir / name).read_text().splitlines()
    for line in map(json.loads, lines):
      lines_read.append({k: v for k, v in line.items() if k not in _TIMES})
  return lines_read


def _size(workdir):
  files = (workdir / name for name in ('metrics.jsonl', 'scores.jsonl'))
  return sum(f.stat().st_size for f in files if f.exists())


def test_kills_change_nothing(server, folders, data, tmp_path):
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
  assert len(set(ids)) == len(ids)

  chance = random.Random(0)
  killed, seen = tmp_path / 'killed', []
  for until in sorted(chance.uniform(0, size) for _ in range(2)):
    started = begin(killed)
    while _size(killed) < until and started.process.is_alive():
      time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.05))
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.join()
    seen.append(_size(killed))
  assert any(0 < s < size for s in seen)  # it was interrupted midway
  ended = begin(killed).join(240)
  assert ended.code == 0, ended.err
  assert _read(killed) == whole
  names = lambda workdir: sorted(path.name for path in workdir.iterdir())
  assert names(killed) == names(tmp_path / 'whole')
