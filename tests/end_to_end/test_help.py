"""The text of --help: flags, configs, and keys with values and meanings."""

import pytest
from testing.launching import path, run_here

from specsamp import verification
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
  lines = run_here('plan', given, '--help').out.splitlines()
  gamma = '  --config.gamma=4            γ, number of draft tokens of the'
  assert any(line.startswith(gamma) for line in lines)
  keys = [line for line in lines if line.startswith('  --config.')]
  nested = keys.index(
    '  --config.prices             price list of every slice.'
  )
  assert keys[nested + 1].startswith('  --config.prices.nodes=(1, 8')
  assert '  --config.target.width=5120' in ' '.join(keys)


def test_names_that_a_key_takes():
  out = ' '.join(run_here('decode', '--help').out.split())
  assert 'One of iid, without_replacement, deterministic' in out
  rules = run_here('decode', '--config.verifier=nope')
  assert ', '.join(verification.VERIFIERS) in rules.err


def test_help_of_a_config_that_needs_an_argument():
  ended = run_here('plan', '--config=configs/plan_pairs.py', '--help')
  assert ended.code == 0
  assert "argument: got '', expected one of llama-13b" in ended.out
