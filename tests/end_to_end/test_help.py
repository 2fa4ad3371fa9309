"""The text of --help: flags, configs, and keys with values and meanings."""

from typing import get_args

import pytest
from testing.launching import path, run_here

from specsamp.drafting import Law
from specsamp.utils import home


@pytest.mark.parametrize('name', home.launchers())
def test_help_lists_flags_and_keys(name):
  """No flag must be given, and other flags need not be valid."""
  ended = run_here(name, '--help', '--nope')
  assert (ended.code, ended.err) == (0, '')
  source = (home.folder() / path(name)).read_text()
  assert source.split('"""')[1].splitlines()[0] in ended.out
  for call, flag in (
    ('define_workdir(', '--workdir=..'),
    ('define_mesh(', '--mesh=..'),
    ('main(config)', '--config=..'),
  ):
    assert call not in source or f'\n  {flag}' in ended.out, flag
  if name == 'decode':
    out = ' '.join(ended.out.split())
    assert f'One of {", ".join(get_args(Law))}.' in out


def test_keys_of_a_config():
  config = '--config=configs/plan_pairs.py'
  out = run_here('plan', f'{config}:llama-13b+llama-68m', '--help').out
  assert '\n  --config.gamma=4            number of' in out
  assert '\n  --config.prices.nodes=(1, 8' in out
  without = run_here('plan', config, '--help')  # it needs an argument
  assert without.code == 0
  assert "argument: got '', expected one of llama-13b" in without.out
