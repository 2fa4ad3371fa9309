"""Programs that outlive the process that compiled them."""

import os
import pathlib
import subprocess
import sys
import types

import pytest

from specsamp.utils import compilation_cache

_ROOT = pathlib.Path(__file__).parents[2]

# A launcher of no more than its flags and a program, and what of it is kept.
_LAUNCHER = """
import jax
from jax import monitoring

from specsamp import cli

events = []
monitoring.register_event_listener(lambda name, **_: events.append(name))


def main():
  print(jax.jit(lambda x: x * 2 + 1)(20.5))
  for name in ('hits', 'misses'):
    print(name, events.count(f'/jax/compilation_cache/cache_{name}'))


cli.run(main, distributes=False)
"""


def _launch(home, *flags, **variables):
  """Exit code 0 asserted; standard output's lines, and standard error."""
  environment = {
    name: value
    for name, value in os.environ.items()
    if name != 'JAX_ENABLE_COMPILATION_CACHE'
  }
  environment |= {'XDG_CACHE_HOME': str(home), 'PYTHONPATH': str(_ROOT)}
  ended = subprocess.run(
    [sys.executable, '-c', _LAUNCHER, *flags],
    env=environment | variables,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert ended.returncode == 0, ended.stderr
  result, *counts = ended.stdout.splitlines()
  assert result == '42.0'
  return counts, ended.stderr


def _programs(folder):
  return sorted(path.name for path in folder.glob('*-cache'))


@pytest.mark.integration
def test_a_second_process_compiles_nothing(tmp_path):
  folder = tmp_path / 'specsamp' / 'xla'
  (hits, misses), printed = _launch(tmp_path)
  kept = _programs(folder)
  assert (hits, misses, printed) == ('hits 0', f'misses {len(kept)}', '')
  assert kept and folder.stat().st_mode & 0o077 == 0
  counts, printed = _launch(tmp_path)
  assert counts == [f'hits {len(kept)}', 'misses 0'] and printed == ''
  assert _programs(folder) == kept
  # A run that is killed leaves half a program, and no note of its use.
  (folder / kept[0]).write_bytes(b'half of it')
  (folder / kept[0].replace('-cache', '-atime')).unlink()
  counts, printed = _launch(tmp_path)
  assert counts == [f'hits {len(kept) - 1}', 'misses 1'] and printed == ''
  counts, _ = _launch(tmp_path)
  assert counts == [f'hits {len(kept)}', 'misses 0']


@pytest.mark.integration
def test_it_can_be_elsewhere_or_off(tmp_path):
  none, default = ['hits 0', 'misses 0'], tmp_path / 'specsamp'
  own, theirs = tmp_path / 'own', tmp_path / 'theirs'
  by_jax = {'JAX_COMPILATION_CACHE_DIR': str(theirs)}
  assert _launch(tmp_path, '--compilation_cache=', **by_jax) == (none, '')
  off = {'JAX_ENABLE_COMPILATION_CACHE': 'false'}
  assert _launch(tmp_path, **off) == (none, '')
  assert not theirs.exists()
  _launch(tmp_path, f'--compilation_cache={own}', **by_jax)
  assert _programs(own) and not theirs.exists()
  # Of the user's own folder jax's own variables tell what is kept in it.
  by_jax['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
  _launch(tmp_path, **by_jax)
  assert _programs(theirs)
  assert not default.exists()


@pytest.mark.integration
def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
  (tmp_path / 'specsamp').write_text('a file')
  counts, printed = _launch(tmp_path)
  assert counts == ['hits 0', 'misses 0']
  folder = tmp_path / 'specsamp' / 'xla'
  assert printed == (
    f'compilation cache {folder}: Not a directory; every start compiles anew\n'
  )


@pytest.mark.integration
def test_programs_that_were_kept_without_a_bound_stay(tmp_path):
  own = {'JAX_COMPILATION_CACHE_DIR': str(tmp_path / 'own')}
  own['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
  (_, misses), _ = _launch(tmp_path, **own)
  kept = _programs(tmp_path / 'own')
  assert misses == f'misses {len(kept)}' and kept
  counts, _ = _launch(tmp_path, f'--compilation_cache={tmp_path / "own"}')
  assert counts == [f'hits {len(kept)}', 'misses 0']


def test_no_home(monkeypatch, capsys):
  def no_user(number):
    raise KeyError(number)

  monkeypatch.setattr('pwd.getpwuid', no_user)
  for name in ('HOME', 'XDG_CACHE_HOME'):
    monkeypatch.delenv(name, raising=False)
  config = types.SimpleNamespace(
    jax_enable_compilation_cache=True, update=lambda *_: None
  )
  jax = types.SimpleNamespace(config=config)
  monkeypatch.setattr(compilation_cache, 'jax', jax)
  folder = compilation_cache.default_folder()
  assert folder == pathlib.Path('~/.cache/specsamp/xla')
  compilation_cache.enable(str(folder))
  assert 'Could not determine home directory' in capsys.readouterr().err
