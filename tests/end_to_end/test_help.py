"""The text of --help: flags, configs, and keys with values and meanings."""

from typing import get_args

import pytest
from testing.launching import path, run_here

from specsamp import verification
from specsamp.drafting import Law
from specsamp.utils import home


@pytest.mark.parametrize('name', home.launchers())
def test_help_lists_flags_and_keys(name):
  """No flag must be given, and other flags need not be valid."""
  ended = run_here(name, '--help', '--nope')
  assert (ended.code, ended.err) == (0, '')
  source = (home.folder() / path(name)).read_text()
  assert source.split('"""')[1].splitlines()[0] in ended.out
  assert '\n  --compilation_cache=..' in ended.out
  for call, flag in (
    ('define_workdir(', '--workdir=..'),
    ('define_mesh(', '--mesh=..'),
    ('main(config)', '--config=..'),
    ('main(values)', '--config.seed=0 '),
  ):
    assert call not in source or f'\n  {flag}' in ended.out, flag


def test_keys_of_a_config():
  given = '--config=configs/plan_pairs.py:llama-13b+llama-68m'
  out = run_here('plan', given, '--help').out
  assert '\n  --config.gamma=4            draft tokens' in out
  assert '\n  --config.target.width=5120' in out
  keys = [line for line in out.splitlines() if line.startswith('  --config.')]
  (nested,) = (i for i, line in enumerate(keys) if '.prices ' in line)
  assert keys[nested + 1].startswith('  --config.prices.nodes=(1, 8')


def test_names_that_a_key_takes():
  out = ' '.join(run_here('decode', '--help').out.split())
  assert f'One of {", ".join(get_args(Law))}.' in out
  rules = run_here('decode', '--config.verifier=nope')
  assert ', '.join(verification.VERIFIERS) in rules.err


def test_help_of_a_config_that_needs_an_argument():
  ended = run_here('plan', '--config=configs/plan_pairs.py', '--help')
  assert ended.code == 0
  assert "argument: got '', expected one of llama-13b" in ended.out
