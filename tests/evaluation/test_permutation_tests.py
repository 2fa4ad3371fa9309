"""Tests of texts pass lossless methods and flag lossy ones."""

import dataclasses

import numpy as np
import pytest
from flax import struct
from testing import tiny

from specsamp.drafting import TokenTree, model_drafter
from specsamp.drafting.language_model import LanguageModelDrafter
from specsamp.evaluation import losslessness, metrics, runner
from specsamp.evaluation.losslessness import permutation_tests, scores
from specsamp.evaluation.methods import Method
from specsamp.evaluation.reporting import tables
from specsamp.evaluation.tasks import Question, Task

pytestmark = pytest.mark.integration


def test_sign_flips_are_counted():
  """By hand: two of the sums +-1 +-2 +-4 are as far from 0 as 7."""
  test = lambda rows: permutation_tests.sign_flip_test(np.asarray(rows, float))
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
  found = np.asarray([
    permutation_tests.sign_flip_test(rng.normal(size=(pairs, 3)), flips=2_000).p
    for _ in range(200)
  ])  # fmt: skip
  for level in (0.05, 0.3, 0.7):
    error = 4 * np.sqrt(level * (1 - level) / 200)
    assert abs(np.mean(found <= level) - level) < error


@pytest.fixture(scope='module')
def examined(tmp_path_factory):
  """Texts of a tiny target, by lossless methods and by a lossy one."""
  target = tiny.model(12, seed=5)
  draft = tiny.first_layer(target)
  sampling = (1.0, 1.0)
  tree = TokenTree.branching((2, 1))
  methods = [
    Method('autoregressive', None, 'token', *sampling),
    Method('token', model_drafter(draft, 3), 'token', *sampling),
    Method(
      'tree',
      model_drafter(draft, tree, 'without_replacement'),
      'multi_candidate',
      *sampling,
    ),
    Method('typical', model_drafter(draft, 3), 'typical_lossy', *sampling),
    Method('autoregressive', None, 'token', 0.0, 1.0),
    Method('greedy', model_drafter(draft, 3), 'token', 0.0, 1.0),
  ]
  rng = np.random.default_rng(0)
  prompts = [
    Question(f'p{i}', ''.join(rng.choice(list('abcdefghijkl'), 6)))
    for i in range(16)
  ]
  tasks = [Task('letters', prompts, ends=False)]
  folder = tmp_path_factory.mktemp('run')
  settings = runner.Settings(
    max_prompt_tokens=8, max_new_tokens=40, seed=1, samples=6
  )
  path = folder / 'metrics.jsonl'
  lines = runner.compare(target, methods, tasks, settings, path)
  path = folder / 'scores.jsonl'
  scored = scores.score(target, tasks, lines, settings, path)
  return lines, scored


def _verdicts(rows):
  return {row.method: row.verdict for row in rows}


def test_the_lossy_method_is_flagged_and_no_other(examined):
  rows = permutation_tests.examine(*examined, 'float32')
  assert _verdicts(rows) == {
    'token': 'lossless',
    'tree': 'lossless',
    'typical': 'LOSSY',
    'greedy': 'lossless',
  }
  typical = next(row for row in rows if row.method == 'typical')
  # It prefers likely tokens.
  assert typical.excess_nll < typical.baseline_excess_nll - 0.05
  p_target = {row.method: row.p_target for row in rows}
  assert p_target['typical'] < 0.01
  assert min(p_target['token'], p_target['tree']) > 1e-3
  greedy = next(row for row in rows if row.method == 'greedy')
  assert greedy.texts == greedy.same == 16  # one sample of each
  _, _, table = permutation_tests.section(rows)
  assert [row['verdict'] for row in table.rows].count('lossless') == 3


def test_a_greedy_token_that_is_not_the_best(examined):
  lines, scored = examined
  ids = {l.id for l in lines if l.method == 'greedy'}  # noqa: E741
  worse = {
    i: dataclasses.replace(score, gap=0.5) if i in ids else score
    for i, score in scored.items()
  }
  rows = permutation_tests.examine(lines, worse, 'float32')
  assert _verdicts(rows)['greedy'] == 'LOSSY'


def test_few_texts_prove_nothing(examined):
  lines, scored = examined
  few = [line for line in lines if line.prompt in ('p0', 'p1')]
  few = [line for line in few if line.sample < 2]
  rows = permutation_tests.examine(few, scored, 'float32')
  assert set(_verdicts(rows).values()) == {'lossless', 'too few texts'}
  assert _verdicts(rows)['greedy'] == 'lossless'
  assert {row.p_target for row in rows} == {None}  # too few tokens


def test_texts_that_hardly_differ_prove_nothing(examined):
  """Forty pairs with two differences are two pairs."""
  lines, scored = examined
  base = {
    (line.prompt, line.sample): line
    for line in lines
    if line.method == 'autoregressive' and line.temperature
  }
  kept = ('p0', 'p1')
  alike = []
  for line in (line for line in lines if line.sample < 2):
    if line.method == 'token' and line.prompt not in kept:
      same = base[line.prompt, line.sample]
      line = dataclasses.replace(
        line, output_tokens=same.output_tokens, id=same.id
      )
    if line.method in ('token', 'autoregressive'):
      alike.append(line)
  (row,) = permutation_tests.examine(alike, scored, 'float32')
  assert (row.same, row.verdict) == (28, 'too few texts')


def test_methods_draw_independent_bits(examined):
  lines, _ = examined
  seeds = [line.seed for line in lines]
  assert len(set(seeds)) == len(seeds)
  samples = [l.output_tokens for l in lines if l.method == 'token']  # noqa: E741
  assert len({str(sample) for sample in samples}) == 16 * 6


def test_scores_of_a_task_are_compared(examined):
  lines, scored = examined
  better = {
    line.id: dataclasses.replace(
      scored[line.id],
      scores={'ROUGE-2': 0.5 * (line.method == 'tree'), 'why': ''},
    )
    for line in lines
  }
  rows = permutation_tests.examine(lines, better, 'float32')
  parity = {row.method: row.scores for row in rows}
  assert parity['token']['ROUGE-2, letters'] == (0, 0, 1)
  base, value, p = parity['tree']['ROUGE-2, letters']
  assert (base, value) == (0, 0.5) and p < 1e-3
  *_, table = permutation_tests.section(rows)
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
  drafter = model_drafter(tiny.first_layer(target), 3)
  rng = np.random.default_rng(0)
  prompts = [''.join(rng.choice(list('abcdefghijkl'), 6)) for _ in range(20)]
  verdicts = lambda drafter: [
    found.verdict for found in losslessness.check(target, drafter, prompts)
  ]
  assert verdicts(drafter) == ['lossless', 'lossless']
  assert verdicts(_Wrong(**vars(drafter))) == ['lossless', 'LOSSY']
