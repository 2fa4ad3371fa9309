"""Scores resume; tests of texts pass lossless methods and flag lossy ones."""

import dataclasses
import json

import numpy as np
import pytest
from flax import struct
from testing import tiny

from specsamp import LanguageModel, SamplingParams, generate
from specsamp.drafting import model_drafter
from specsamp.drafting.language_model import LanguageModelDrafter
from specsamp.evaluation import losslessness, metrics, runner
from specsamp.evaluation.methods import Method
from specsamp.evaluation.reporting import tables
from specsamp.evaluation.tasks import Question, Task

pytestmark = pytest.mark.integration

_RNG = np.random.default_rng(0)
_PROMPTS = [''.join(_RNG.choice(list('abcdefghijkl'), 6)) for _ in range(20)]


def test_sign_flips_are_counted():
  """By hand: two of the sums +-1 +-2 +-4 are as far from 0 as 7."""
  test = lambda rows: losslessness.sign_flip_test(np.asarray(rows, float))
  assert test([[1], [2], [4]]) == (2 / 8, 2 / 8)
  # If 1 is negative, 4 + 2 - 1 and its mirror image count too.
  assert test([[-1], [2], [4]]).p == 4 / 8
  # Two figures: lengths of vectors.
  assert test([[3, 0], [0, 4]]).p == 1
  assert test([[3, 1], [0, 4]]).p == 0.5
  # More figures than pairs.
  assert test([[3, 1, 0, 0, 2], [0, 4, 0, 1, 0]]).p == 0.5
  # Pairs without a difference do not count.
  assert test([[1], [2], [4], *[[0]] * 40]) == (2 / 8, 2 / 8)
  assert test(np.zeros((30, 2))) == (1, 1)


@pytest.mark.parametrize('pairs', [12, 40])
def test_p_values_are_uniform(pairs):
  """For differences of random sign, below and above 14 pairs."""
  rng = np.random.default_rng(pairs)
  test = losslessness.sign_flip_test
  found = np.asarray(
    [test(rng.normal(size=(pairs, 3)), flips=2_000).p for _ in range(200)]
  )
  for level in (0.05, 0.3, 0.7):
    error = 4 * np.sqrt(level * (1 - level) / 200)
    assert abs(np.mean(found <= level) - level) < error


@pytest.fixture(scope='module')
def examined(tmp_path_factory):
  """Texts of a tiny target, by a lossless method and by a lossy one."""
  target = tiny.model(12, seed=5)
  drafter = model_drafter(tiny.first_layer(target), 3)
  methods = [
    Method('autoregressive', None, 'token', 1.0, 1.0),
    Method('token', drafter, 'token', 1.0, 1.0),
    Method('typical', drafter, 'typical_lossy', 1.0, 1.0),
    Method('autoregressive', None, 'token', 0.0, 1.0),
    Method('greedy', drafter, 'token', 0.0, 1.0),
  ]
  prompts = [Question(f'p{i}', text) for i, text in enumerate(_PROMPTS[:16])]
  tasks = [Task('letters', prompts, ends=False)]
  folder = tmp_path_factory.mktemp('run')
  settings = runner.Settings(
    max_prompt_tokens=8, max_new_tokens=40, seed=1, samples=6, batch_size=16
  )
  lines = runner.compare(target, methods, tasks, settings, folder / 'metrics')
  return lines, losslessness.score(
    target, tasks, lines, settings, folder / 'scores'
  )


def _examine(lines, scores):
  """Returns the findings by the names of their methods."""
  findings = losslessness.examine(lines, scores, 'float32')
  return {finding.method: finding for finding in findings}


def test_the_lossy_method_is_flagged_and_no_other(examined):
  found = _examine(*examined)
  verdicts = [(name, finding.verdict) for name, finding in found.items()]
  assert verdicts == [
    ('token', 'lossless'), ('typical', 'LOSSY'), ('greedy', 'lossless'),
  ]  # fmt: skip
  typical = found['typical']
  # It prefers likely tokens.
  assert typical.excess_nll < typical.baseline_excess_nll - 0.05
  assert typical.p_target < 0.01 and found['token'].p_target > 1e-3
  assert (
    found['greedy'].texts == found['greedy'].same == 16
  )  # one sample of each
  _, _, table = losslessness.section(list(found.values()))
  assert [row['verdict'] for row in table.rows].count('lossless') == 2


def test_a_greedy_token_that_is_not_the_best(examined):
  lines, scored = examined
  worse = dict(scored)
  for line in lines:
    if line.method == 'greedy':
      worse[line.id] = dataclasses.replace(scored[line.id], gap=0.5)
  assert _examine(lines, worse)['greedy'].verdict == 'LOSSY'


def test_few_texts_prove_nothing(examined):
  lines, scored = examined
  few = [line for line in lines if line.prompt in ('p0', 'p1')]
  found = _examine([line for line in few if line.sample < 2], scored)
  verdicts = [finding.verdict for finding in found.values()]
  assert verdicts == ['too few texts', 'too few texts', 'lossless']
  assert {f.p_target for f in found.values()} == {None}  # too few tokens


def test_methods_draw_independent_bits(examined):
  lines, _ = examined
  seeds = [line.seed for line in lines]
  assert len(set(seeds)) == len(seeds)
  samples = {str(x.output_tokens) for x in lines if x.method == 'token'}
  assert len(samples) == 16 * 6


def test_scores_of_a_task_are_compared(examined):
  lines, scored = examined
  better = {
    line.id: dataclasses.replace(
      scored[line.id],
      scores={'ROUGE-2': 0.5 * (line.method == 'typical'), 'why': ''},
    )
    for line in lines
  }
  found = _examine(lines, better)
  assert found['token'].scores['ROUGE-2, letters'] == (0, 0, 1)
  base, value, p = found['typical'].scores['ROUGE-2, letters']
  assert (base, value) == (0, 0.5) and p < 1e-3
  *_, table = losslessness.section(list(found.values()))
  assert {row['score'] for row in table.rows} == {'ROUGE-2, letters'}
  texts = {id_: score.scores for id_, score in better.items()}
  table = tables.table(metrics.overall(lines, texts))
  assert 'ROUGE-2' in table.render()


@struct.dataclass
class _Wrong(LanguageModelDrafter):
  """A drafter whose q is not the distribution of its tokens."""

  def propose(self, *args):
    draft, state = super().propose(*args)
    return draft.replace(q=draft.q**2 / (draft.q**2).sum(-1)[..., None]), state


def test_a_user_defined_drafter():
  """One call tests it; the wrong q only matters for sampling."""
  target = tiny.model(12, seed=5)
  drafter = _Wrong(**vars(model_drafter(tiny.first_layer(target), 3)))
  findings = losslessness.check(target, drafter, _PROMPTS)
  assert [found.verdict for found in findings] == ['lossless', 'LOSSY']


_SETTINGS = runner.Settings(
  max_prompt_tokens=16, max_new_tokens=4, seed=0, samples=2
)


def _lines(target, tasks, path):
  methods = [
    Method('autoregressive', None, 'token', t, 1.0) for t in (0.0, 1.0)
  ]
  return runner.compare(target, methods, tasks, _SETTINGS, path)


def test_answers_that_may_not_run_have_no_score(tmp_path):
  calls, target = [], tiny.model(26, seed=0)

  def score(prompt, answer):
    calls.append((prompt.name, answer))
    return {'pass@1': 1.0, 'why': 'passed'}

  prompts = [Question('a', 'abc'), Question('b', 'bcd')]
  tasks = [Task('programs', prompts, score=score, runs_answers=True)]
  lines = _lines(target, tasks, tmp_path / 'metrics.jsonl')
  assert len(lines) == 2 * (1 + 2)  # greedy answers are drawn once
  path = tmp_path / 'scores.jsonl'

  def run(allow):
    calls.clear()
    found = losslessness.score(target, tasks, lines, _SETTINGS, path, allow)
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(found) == sorted(line.id for line in lines)
    ids = [line['id'] for line in written]
    assert len(set(ids)) == len(ids) == len(lines)
    return found

  found = run(False)
  assert not calls and {f.scores for f in found.values()} == {None}
  found = run(True)  # answers without a score get one
  assert len(calls) == 6
  assert all(f.scores['pass@1'] == 1 for f in found.values())
  run(True)
  run(False)  # known scores stay
  assert not calls
  # The last line was interrupted: its answer is scored again.
  whole = path.read_text()
  path.write_text(whole[: len(whole) - 30])
  assert run(True) == found and len(calls) == 1
  # Another text or another reference is scored again.
  lines[0] = dataclasses.replace(lines[0], output_tokens=[[1, 2]])
  run(True)
  assert len(calls) == 1
  prompts[1] = prompts[1]._replace(reference='other')
  run(True)
  assert {name for name, _ in calls} == {'b'} and len(calls) == 3


class _Talker(tiny.Letters):
  """Letters; blank lines have no tokens."""

  def encode(self, text, bos=True):
    return super().encode(text.replace('\n', ''))


def test_a_conversation_is_one_line(tmp_path):
  target = tiny.model(26, seed=0)
  talker = LanguageModel(target.transformer, target.params, _Talker(26))
  tasks = [Task('talk', [Question('three turns', 'abc', ('def', 'ghi'))])]
  lines = _lines(talker, tasks, tmp_path / 'metrics.jsonl')
  for line in lines:
    assert line.cut == [False, False, True]  # 3, 10, 17 of 16 tokens
    assert [len(turn) for turn in line.output_tokens] == [4, 4, 4]
    assert line.tokens == 12 and len(line.texts) == 3
  greedy = lines[0]
  # The second question follows the first answer.
  encode = talker.tokenizer.encode
  tokens = [*encode('abc'), *greedy.output_tokens[0], *encode('def')]
  sampling = SamplingParams(0.0)
  again = generate(talker, [tokens], sampling=sampling, max_new_tokens=4)
  assert again.tokens[0] == greedy.output_tokens[1]
