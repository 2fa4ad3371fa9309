"""A wheel, unpacked where no checkout is, runs launchers on its configs."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

import specsamp

_ROOT = pathlib.Path(specsamp.__file__).parents[1]

pytestmark = [pytest.mark.integration, pytest.mark.extended]


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
  """Returns installed(*args), which runs the wheel in an empty folder."""
  folder = tmp_path_factory.mktemp('wheel')
  # In the checkout itself it would leave a folder `build`.
  shutil.copytree(
    _ROOT,
    folder / 'source',
    ignore=shutil.ignore_patterns(
      '.*', 'build', 'runs', 'tests', 'docs', 'notebooks', '*.egg-info'
    ),
  )
  pip = [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps']
  pip += ['--no-build-isolation', f'--wheel-dir={folder}', folder / 'source']
  subprocess.run(pip, check=True, capture_output=True)
  (wheel,) = folder.glob('specsamp-*.whl')
  zipfile.ZipFile(wheel).extractall(folder / 'installed')
  elsewhere = folder / 'elsewhere'
  elsewhere.mkdir()
  path = os.pathsep.join([str(folder / 'installed'), *_others()])
  variables = os.environ | {'PYTHONPATH': path}

  def run(*args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, '-m', 'specsamp', *args]
    return subprocess.run(
      command, cwd=elsewhere, env=variables, capture_output=True, text=True
    )

  return run


def _others() -> list[str]:
  """Returns the entries of the tests' path other than the checkout."""
  path = os.environ.get('PYTHONPATH', '').split(os.pathsep)
  return [entry for entry in path if entry and pathlib.Path(entry) != _ROOT]


def test_the_embedded_pair_decodes(installed):
  ended = installed('decode', '--prompt=def f', '--config.max_new_tokens=8')
  assert ended.returncode == 0, ended.stderr
  assert '8 tokens in ' in ended.stdout


def test_help_names_commands_that_are_there(installed):
  assert installed('--version').stdout.startswith('specsamp 0.')
  ended = installed('throughput', '--help')  # in a subfolder of a checkout
  assert ended.returncode == 0, ended.stderr
  assert 'python -m specsamp throughput\n' in ended.stdout
  assert 'launch/' not in ended.stdout.split('Flags:')[0]


def test_no_such_launcher(installed):
  ended = installed('decod')
  assert ended.returncode == 2
  assert ended.stderr.endswith('throughput; did you mean decode?\n')
