"""Policy gradient through the launcher: drafted rollouts are those without."""

import json

import jax
import numpy as np
import pytest
from testing import launching, shallow

import specsamp
from specsamp import zoo
from specsamp.errors import UserError
from specsamp.experiments import reinforce
from specsamp.training import policy_gradient

_CONFIG = '--config=configs/reinforce_pycode.py:smoke'


@pytest.fixture
def pair(monkeypatch):
  """Replaces the embedded pair by one that compiles fast."""
  load = shallow.zoo_load()
  monkeypatch.setattr(zoo, 'load', load)
  return load('pycode')


def _steps(workdir):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
  'drafter', ['', pytest.param('eagle', marks=pytest.mark.extended)]
)
def test_drafted_rollouts_are_those_without_a_draft(pair, tmp_path, drafter):
  workdir = tmp_path / 'run'
  ended = launching.run_here(
    'reinforce',
    _CONFIG,
    f'--config.drafter={drafter}',
    '--config.learning_rate=0.01',
    f'--workdir={workdir}',
  )
  assert ended.code == 0, ended
  steps = _steps(workdir)
  # The rollouts of the second step are those of a policy that has moved.
  assert [step['same'] for step in steps] == [1, 1]
  assert all(1 <= step['tau'] <= 4 for step in steps)
  assert ('the policy before' in ended.out) == (drafter == 'eagle')
  policy = specsamp.load(workdir / 'policy')
  same = jax.tree.map(np.array_equal, policy.params, pair.target.params)
  assert not any(jax.tree.leaves(same))


@pytest.mark.usefixtures('pair')
@pytest.mark.parametrize(
  ('flag', 'words'),
  [
    ('group=1', 'group: got 1, expected at least 2'),
    ('max_new_tokens=100000', 'max_prompt_tokens: got 8, with 100000'),
    ('drafter=medusas', 'medusas'),
    ('temperature=0.0', 'temperature: got 0.0, expected at least 1e-06'),
  ],
)
def test_mistakes_are_one_line(tmp_path, flag, words):
  ended = launching.run_here(
    'reinforce', _CONFIG, f'--config.{flag}', f'--workdir={tmp_path}/run'
  )
  assert ended.code == 2 and not (tmp_path / 'run').exists()
  assert words in ended.err and ended.err.count('\n') == 1, ended.err


@pytest.mark.usefixtures('pair')
def test_an_interrupted_run_resumes(tmp_path, monkeypatch):
  """Resumes from the last checkpoint, and equals an undisturbed run."""

  def train(name):
    return launching.run_here(
      'reinforce',
      _CONFIG,
      '--config.steps=4',
      '--config.learning_rate=0.01',
      '--config.draft_len=0',
      f'--workdir={tmp_path}/{name}',
    )

  def read(name):
    policy = specsamp.load(tmp_path / name / 'policy')
    steps = _steps(tmp_path / name)
    losses = [(step['step'], step['reward'], step['loss']) for step in steps]
    return policy.params, losses

  def advantages(rewards, group):
    calls.append(group)
    if len(calls) == 4:
      raise UserError('interrupted')
    return policy_gradient.advantages(rewards, group)

  assert train('whole').code == 0
  calls = []
  monkeypatch.setattr(reinforce, '_SAVE_EVERY', 2)
  monkeypatch.setattr(reinforce, 'advantages', advantages)
  assert train('interrupted').code == 2
  steps = [step['step'] for step in _steps(tmp_path / 'interrupted')]
  assert steps == [1, 2, 3]
  ended = train('interrupted')
  assert ended.code == 0 and len(calls) == 6, ended
  params, losses = read('interrupted')
  whole_params, whole_losses = read('whole')
  jax.tree.map(np.testing.assert_array_equal, params, whole_params)
  assert losses == whole_losses
