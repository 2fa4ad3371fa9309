"""Policy gradient through the launcher: drafted rollouts are those without."""

import json

import jax
import launching
import numpy as np
import optax
import pytest
import shallow
import tiny

from specsamp import zoo
from specsamp.jobs import reinforce

_CONFIG = '--config=configs/reinforce_pycode.py:smoke'


@pytest.fixture
def pair(monkeypatch):
  """In place of the embedded one: little of it is to be compiled."""
  monkeypatch.setattr(zoo, 'load', shallow.zoo_load())


@pytest.mark.usefixtures('pair')
@pytest.mark.parametrize('drafter', ['', 'eagle'])
def test_steps_have_the_rollouts_of_no_draft(tmp_path, drafter):
  ended = launching.run_here(
    'reinforce',
    _CONFIG,
    f'--config.drafter={drafter}',
    '--config.learning_rate=0.01',
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 0, ended
  summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
  steps = summary['steps']
  assert (len(steps), summary['rollouts'], summary['same']) == (2, 8, 8)
  assert summary['compiled'] == 0
  # The second step's rollouts are of the policy that has moved.
  assert all(step['logprob_gap'] < 1e-4 for step in steps)
  assert all(1 <= step['tau'] <= 4 for step in steps)
  assert summary['is_stale'] == (drafter == 'eagle')
  assert '8 rollouts in 2 steps: 8 the same' in ended.out
  assert ('policy before it moved' in ended.out) == (drafter == 'eagle')
  picture = (tmp_path / 'run' / 'steps.png').read_bytes()
  assert picture.startswith(b'\x89PNG')


@pytest.mark.usefixtures('pair')
@pytest.mark.parametrize(
  ('flag', 'words'),
  [
    ('group=1', ['group', '1', '2']),
    ('steps=0', ['steps', '0']),
    ('max_new_tokens=100000', ['max_prompt_tokens', '100000']),
    ('drafter=medusas', ['medusas']),
  ],
)
def test_mistakes_are_told_in_a_line(tmp_path, flag, words):
  ended = launching.run_here(
    'reinforce', _CONFIG, f'--config.{flag}', f'--workdir={tmp_path}/run'
  )
  assert ended.code == 2 and not (tmp_path / 'run').exists()
  assert ended.err.count('\n') == 1
  assert all(word in ended.err for word in words), ended.err


def test_advantages_are_of_a_group():
  found = reinforce.advantages(
    np.asarray([1, 3, 5, 5, 0, 2], np.float32), group=2
  )
  np.testing.assert_allclose(found, [-1, 1, 0, 0, -1, 1])


def test_a_step_makes_what_paid_more_probable():
  """The prompts and what fills the rows have no part in it."""
  model = tiny.model(11, 28)
  optimizer = optax.sgd(1e-2)
  update = reinforce.make_update(model.transformer, optimizer)
  tokens = np.asarray([[1, 2, 3, 4, 0, 0], [1, 2, 5, 6, 7, 0]], np.int32)
  is_new = np.asarray([[0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0]], np.float32)
  advantages = np.asarray([1, -1], np.float32)
  step = lambda params: update(
    params, optimizer.init(params), tokens, is_new, advantages
  )
  params, _, before = step(model.params)
  _, _, after = step(params)
  gain = np.asarray((after - before) * is_new).sum(axis=1)
  assert gain[0] > 0 > gain[1]
  logits = model.transformer.apply({'params': model.params}, tokens).logits
  wanted = jax.nn.log_softmax(logits[1, 1])[5]
  np.testing.assert_allclose(before[1, 2], wanted, rtol=1e-5)


@pytest.mark.parametrize(('text', 'share'), [('ab1 ', 0.5), ('', 0.0)])
def test_the_reward_counts_letters(text, share):
  assert reinforce.reward(text) == share
