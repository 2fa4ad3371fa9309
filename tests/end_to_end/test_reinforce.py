"""Policy gradient through the launcher: drafted rollouts are those without."""

import json
import sys
import types

import jax
import numpy as np
import pytest
from testing import launching, shallow

import specsamp
from specsamp import zoo
from specsamp.errors import UserError
from specsamp.evaluation.tasks import Question, Task
from specsamp.experiments import reinforce
from specsamp.training import policy_gradient

_CONFIG = '--config=configs/reinforce_pycode.py:smoke'


@pytest.fixture
def pair(monkeypatch):
  """In place of the embedded one: little of it is to be compiled."""
  load = shallow.zoo_load()
  monkeypatch.setattr(zoo, 'load', load)
  return load('pycode')


@pytest.mark.parametrize('drafter', ['', 'eagle'])
def test_steps_have_the_rollouts_of_no_draft(pair, tmp_path, drafter):
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
  policy = specsamp.load(tmp_path / 'run' / 'policy')
  moved = jax.tree.map(np.array_equal, policy.params, pair.target.params)
  assert not any(jax.tree.leaves(moved))
  picture = (tmp_path / 'run' / 'steps.png').read_bytes()
  assert picture.startswith(b'\x89PNG')


@pytest.mark.usefixtures('pair')
@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    ('group=1', ['group', '1', '2']),
    ('steps=0', ['steps', '0']),
    ('draft_len=0', ['compare', 'True', 'draft_len=0']),
    ('steps=1000000000', ['steps', 'at most 536870911']),
    ('max_new_tokens=100000', ['max_prompt_tokens', '100000']),
    ('drafter=medusas', ['medusas']),
    ('step_prompts=3', ['step_prompts', '3', 'at most 2']),
    ('temperature=0.0', ['temperature', '0.0', 'at least 1e-06']),
    ('reward=valid', ["'valid'", 'did you mean valid Python?']),
    (
      'prompts=code_edits max_prompt_tokens=160 reward=valid',
      ['code edits: it has no score'],
    ),
  ],
)
def test_mistakes_are_told_in_a_line(tmp_path, flags, words):
  ended = launching.run_here(
    'reinforce',
    _CONFIG,
    *(f'--config.{flag}' for flag in flags.split()),
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 2 and not (tmp_path / 'run').exists()
  assert ended.err.count('\n') == 1
  assert all(word in ended.err for word in words), ended.err


def test_prompts_take_turns_and_equal_scores_teach_nothing(
  pair, tmp_path, monkeypatch
):
  paid, drawn = [], []

  class Sampler(reinforce.EngineSampler):
    def __call__(self, prompts, most, **options):
      drawn.append((most, options['eos_tokens']))
      return super().__call__(prompts, most, **options)

  def score(question, answer):
    paid.append(question.name)
    return {'half': 0.5, 'a word': answer}

  def task(*_):
    texts = {'first': 'a =', 'second': 'b =', 'third': 'c ='}
    return Task(
      'paying',
      [Question(*each) for each in texts.items()],
      ends=False,
      most_new_tokens=5,
      score=score,
    )

  monkeypatch.setattr(reinforce, 'EngineSampler', Sampler)
  monkeypatch.setitem(sys.modules, 'paying', types.SimpleNamespace(task=task))
  ended = launching.run_here(
    'reinforce',
    _CONFIG,
    '--config.prompts=paying:task',
    '--config.reward=half',
    '--config.num_prompts=3',
    '--config.compare=False',
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 0, ended
  names = ['first', 'second', 'third', 'first']
  assert paid[-8:] == [name for name in names for _ in range(2)]
  assert drawn == [(5, ())] * 2
  summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
  assert summary['same'] is None
  assert [step['reward'] for step in summary['steps']] == [0.5, 0.5]
  assert 'without a draft' not in ended.out
  policy = specsamp.load(tmp_path / 'run' / 'policy')
  jax.tree.map(np.testing.assert_array_equal, policy.params, pair.target.params)


def test_a_run_goes_on_where_it_was(pair, tmp_path, monkeypatch):
  """From the last checkpoint, close to what it was before the first step.

  It has no draft, and the steps of a run that has one.
  """

  def train(name, draft_len=0):
    return launching.run_here(
      'reinforce',
      _CONFIG,
      '--config.steps=4',
      '--config.learning_rate=0.01',
      '--config.temperature=0.7',
      '--config.kl=0.5',
      '--config.compare=False',
      f'--config.draft_len={draft_len}',
      f'--workdir={tmp_path}/{name}',
    )

  def read(name):
    folder = tmp_path / name
    lines = (folder / 'metrics.jsonl').read_text().splitlines()
    steps = [json.loads(line) | {'seconds': 0} for line in lines]
    return specsamp.load(folder / 'policy').params, steps

  def make_update(transformer, optimizer, reference, **options):
    assert options == dict(temperature=0.7, kl=0.5, rows=2)
    same = jax.tree.map(np.array_equal, reference, pair.target.params)
    assert all(jax.tree.leaves(same))
    return policy_gradient.make_update(
      transformer, optimizer, reference, **options
    )

  def advantages(rewards, group):
    calls.append(group)
    if len(calls) == 4:
      raise UserError('cut off')
    return policy_gradient.advantages(rewards, group)

  monkeypatch.setattr(reinforce, 'make_update', make_update)
  whole = train('whole')
  assert whole.code == 0 and 'τ' not in whole.out, whole
  assert train('drafted', draft_len=2).code == 0
  calls = []
  monkeypatch.setattr(reinforce, '_SAVE_EVERY', 2)
  monkeypatch.setattr(reinforce, 'advantages', advantages)
  assert train('cut').code == 2
  assert [step['number'] for step in read('cut')[1]] == [1, 2, 3]
  ended = train('cut')
  assert ended.code == 0 and len(calls) == 6, ended
  params, steps = read('cut')
  wanted, as_whole = read('whole')
  jax.tree.map(np.testing.assert_array_equal, params, wanted)
  assert steps == as_whole
  assert all(step['tau'] is None for step in steps)
  drafted = read('drafted')[1]
  assert any(step['tau'] > 1 for step in drafted), drafted
  rewards = lambda steps: [step['reward'] for step in steps]
  assert rewards(drafted) == rewards(steps)
  assert all(step['logprob_gap'] < 1e-4 for step in [*steps, *drafted])
  (tmp_path / 'cut' / 'metrics.jsonl').unlink()
  ended = train('cut')
  assert ended.code == 2 and 'got 0 of the steps' in ended.err


@pytest.mark.usefixtures('pair')
def test_a_policy_that_is_no_number_is_not_saved(tmp_path, monkeypatch):
  spoilt = lambda rewards, group: np.full(len(rewards), np.nan, np.float32)
  monkeypatch.setattr(reinforce, 'advantages', spoilt)
  monkeypatch.setattr(reinforce, '_SAVE_EVERY', 1)
  ended = launching.run_here(
    'reinforce', _CONFIG, f'--workdir={tmp_path}/run', '--config.compare=False'
  )
  assert ended.code and 'step 1: the update left a state' in ended.err, ended
  assert not (tmp_path / 'run' / 'policy').exists()


@pytest.mark.parametrize(('text', 'share'), [('ab1 ', 0.5), ('', 0.0)])
def test_the_reward_counts_letters(text, share):
  assert reinforce.reward('', None, text) == share
