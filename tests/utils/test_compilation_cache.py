"""Compiled programs that outlive their process."""

import os
import pathlib
import subprocess
import sys
import types

import pytest

from specsamp.utils import compilation_cache

pytestmark = pytest.mark.integration

_ROOT = pathlib.Path(__file__).parents[2]

# A launcher with nothing but its flags and a program.
_LAUNCHER = """
import jax
from jax import monitoring

from specsamp import cli

events = []
monitoring.register_event_listener(lambda name, **_: events.append(name))


def main():
  print(jax.jit(lambda x: x * 2 + 1)(20.5))
  for name in ('hits', 'misses'):
    print(events.count(f'/jax/compilation_cache/cache_{name}'))


cli.run(main, distributes=False)
"""


def _launch(home, *flags, **variables):
  """Returns (hits, misses) and standard error of a run that succeeds."""
  environment = os.environ | {
    'JAX_ENABLE_COMPILATION_CACHE': 'true',
    'XDG_CACHE_HOME': str(home),
    'PYTHONPATH': str(_ROOT),
  }
  ended = subprocess.run(
    [sys.executable, '-c', _LAUNCHER, *flags],
    env=environment | variables,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert ended.returncode == 0, ended.stderr
  result, hits, misses = ended.stdout.splitlines()
  assert result == '42.0'
  return (int(hits), int(misses)), ended.stderr


def _programs(folder):
  return sorted(path.name for path in folder.glob('*-cache'))


def test_a_second_process_compiles_nothing(tmp_path):
  folder = tmp_path / 'specsamp' / 'xla'
  first = _launch(tmp_path)
  count = len(_programs(folder))
  assert count and first == ((0, count), '')
  assert folder.stat().st_mode & 0o077 == 0
  assert _launch(tmp_path) == ((count, 0), '')
  # A killed run leaves half a program, which is compiled again.
  (folder / _programs(folder)[0]).write_bytes(b'half of it')
  assert _launch(tmp_path) == ((count - 1, 1), '')


def test_it_can_be_elsewhere_or_off(tmp_path):
  flag, variable = tmp_path / 'flag', tmp_path / 'variable'
  by_jax = {
    'JAX_COMPILATION_CACHE_DIR': str(variable),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  assert _launch(tmp_path, '--compilation_cache=', **by_jax) == ((0, 0), '')
  _launch(tmp_path, f'--compilation_cache={flag}', **by_jax)
  assert _programs(flag) and not variable.exists()
  # jax's variables decide what is kept in jax's folder.
  _launch(tmp_path, **by_jax)
  assert _programs(variable) and not (tmp_path / 'specsamp').exists()


@pytest.mark.parametrize(
  ('folder', 'reason'),
  [
    ('{tmp}/file', 'File exists'),
    ('~no_such_user/xla', 'Could not determine home directory'),
  ],
)
def test_a_folder_that_cannot_be_made(
  folder, reason, tmp_path, monkeypatch, capsys
):
  (tmp_path / 'file').write_text('')
  config = types.SimpleNamespace(
    jax_enable_compilation_cache=True, update=lambda *_: None
  )
  fake = types.SimpleNamespace(config=config)
  monkeypatch.setattr(compilation_cache, 'jax', fake)
  folder = folder.replace('{tmp}', str(tmp_path))
  compilation_cache.enable(folder)
  line = f'compilation cache {folder}: {reason}'
  assert capsys.readouterr().err.startswith(line)
