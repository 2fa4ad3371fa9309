"""Tables and sections of a comparison."""

import dataclasses
import json
import types

import pytest
from testing import tiny

from specsamp.drafting import TokenTree, model_drafter
from specsamp.errors import UserError
from specsamp.evaluation import methods, metrics, timing
from specsamp.evaluation.losslessness.scores import Score
from specsamp.evaluation.methods import Method
from specsamp.evaluation.metrics import Figures, PaperFigure, Row
from specsamp.evaluation.reporting import comparison, paper_figures, tables
from specsamp.evaluation.tasks import Task
from specsamp.experiments.methods import MethodConfig
from specsamp.utils import schema


def _row(**values):
  """Returns a row of a report, with 1 in all fields that are not given."""
  ones = dict.fromkeys(Figures.__dataclass_fields__, 1.0)
  return Row(
    **ones
    | dict(
      method='m', temperature=0.0, top_p=1.0, verifier='token', lossless=True,
      law='iid', tree=TokenTree.chain(1), tree_attention=True, task='t',
      speedup=1.0, speedup_95=None, block_efficiency_95=None, scores={},
      acceptance_rate_95=None, acceptance_by_position=[1.0],
    )
    | values
  )  # fmt: skip


def _cost(**values):
  names = ('round_ms', 'draft_ms', 'score_ms', 'both_ms', 'overhead')
  fields = dict.fromkeys((*names, 'verification'), 1.0)
  shape = dict(temperature=0.0, top_p=1.0, tree=TokenTree.chain(1))
  return timing.RoundCost(**fields | shape | values)


def _baseline(**values):
  return _row(method=methods.BASELINE, tree=TokenTree.chain(0), **values)


def test_break_even_of_a_tree():
  """A tree of twice the tokens may take twice the time of the chain's round."""
  chain = _row(block_efficiency=2.0, tree=TokenTree.chain(2))
  tree = _row(block_efficiency=4.0, tree=TokenTree.branching((4, 2)))
  text = lambda round_ms: paper_figures.break_even(
    chain,
    tree,
    _cost(round_ms=6.0, score_ms=4.0),
    _cost(round_ms=round_ms, score_ms=12.0),
  )
  assert '2.00 times the tokens' in text(15.0)
  assert '3.00 times the 4.00 ms' in text(15.0)
  assert 'less than 9.00 ms, 2.25 times' in text(15.0)
  assert 'slower whatever' in text(30.0)


def test_lossy_methods_are_marked(tmp_path):
  rows = [
    _baseline(),
    _row(method='chain'),
    _row(method='typical', verifier='typical_lossy', lossless=False),
  ]
  shown = comparison.write(tmp_path, 'Title', rows, [], 'by_method').text()
  runs = json.loads((tmp_path / 'summary.json').read_text())['runs']
  assert [run['lossless'] for run in runs] == [True, True, False]
  text = (tmp_path / 'report.md').read_text()
  marked = [line for line in text.splitlines() if 'NOT lossless' in line]
  assert len(marked) == 4  # a row in each of three tables, and the note
  assert '| typical (NOT lossless) |' in marked[0]
  assert 'A method that is NOT lossless' in marked[1]
  assert 'typical (NOT lossless)' in shown and '|' not in shown
  # Lossless methods need no remark.
  for text in (tables.table(rows[:2]).render(), tables.note(rows[:2])):
    assert 'lossless' not in text
  # A table with one rule has no column of rules.
  assert 'verifier' in tables.table(rows).render()
  assert 'verifier' not in tables.table(rows[:2]).render()


@pytest.mark.parametrize(
  ('values', 'words'),
  [
    (dict(temperature=0.0, top_k=3), 'temperature 0, expected neither'),
    (dict(temperature=0.0, top_p=0.9), 'temperature 0, expected neither'),
    (dict(temperature=1.0, top_k=2.5), 'top_k: got 2.5'),
    (dict(temperature=1.0, top_p='most'), 'top_p: got'),
    *(
      (dict(temperature=0.0, paper=paper), 'paper: got')
      for paper in ('1.5/2', 'fast', {'qa': 'fast'}, '1.2.3 / 0', '~', 5j)
    ),
  ],
)
def test_invalid_method_configs(values, words):
  with pytest.raises(UserError, match=words):
    schema.read(MethodConfig, dict(name='m', branching=(1,)) | values)


def test_figures_of_a_paper():
  read = lambda paper: schema.read(
    MethodConfig, dict(name='m', branching=(1,), temperature=0.0, paper=paper)
  )
  one = read('2.61')
  assert one.paper_on('code', alone=True) == PaperFigure(speedup=2.61)
  assert one.paper_on('code', alone=False) is None
  assert str(one.paper_on(metrics.ALL, alone=False)) == '2.61'
  two = read({'xsum': '~1.92 / 2.3'})
  assert str(two.paper_on('xsum', alone=False)) == '~1.92 / 2.3'
  assert two.paper_on('humaneval', alone=True) is None
  assert read('').paper_on('code', alone=True) is None
  row = _row(paper=PaperFigure(speedup=2.61))
  # The column stays though all drafts have the same figure.
  assert '2.61' in tables.table([row]).render()
  assert 'paper' not in tables.table([_row()]).render()
  assert '1.00 / 1.00 (2.61)' in tables.by_task([row]).render()


def test_methods_that_a_report_cannot_distinguish():
  target = tiny.model(26, 0)
  method = lambda tree: Method(
    'm', model_drafter(tiny.first_layer(target), tree), 'naive', 1.0, 1.0
  )
  twins = [TokenTree((-1, 0, 0, 1, 1, 2)), TokenTree((-1, 0, 0, 1, 2, 2))]
  with pytest.raises(UserError, match='duplicate m 6 nodes, depth 2'):
    methods.check([method(tree) for tree in twins])
  methods.check([method(twins[0]), method(TokenTree.chain(5))])


def test_speedup_at_the_round_cost_of_a_paper():
  """EAGLE of the paper's table 1: 3.58 tokens per round at 2.18 times the speed
  are a round of 1.64 steps."""
  plain = _baseline(round_ms=2.5)
  eagle = _row(
    method='EAGLE', speedup=2.0, block_efficiency=4.0, round_ms=5.0,
    paper=PaperFigure(speedup=2.18, tau=3.58), tree=TokenTree.chain(5),
  )  # fmt: skip
  hydra = dataclasses.replace(eagle, method='Hydra', paper=None)
  cost = _cost(draft_ms=1.0, score_ms=3.5)
  *_, table = paper_figures.at_paper_cost(
    [plain, eagle, _baseline(round_ms=9.0, temperature=1.0)],
    [(eagle, cost), (hydra, cost), (hydra, None)],
  )
  first, second, third = (list(row.values()) for row in table.rows)
  assert first[1:7] == ['EAGLE', 'γ=5', 1.0, 3.5, 4.0, 2.0]
  assert first[7:] == pytest.approx([2.0, 3.58 / 2.18, 4 / (3.58 / 2.18)])
  assert second[7:] == [2.0, None, None]
  assert third[3:5] == [None, None]


def test_each_row_is_once_among_the_best():
  """A chain is as long as the trees of several rules."""
  tree = TokenTree.branching((2,))
  rows = [
    _row(method=rule, tree=shape, speedup=best, block_efficiency=best)
    for rule in 'abc'
    for shape, best in ((TokenTree.chain(1), 1.0), (tree, 2.0))
  ]
  _, table = paper_figures.best(rows)
  above = 'as long as the fastest above'
  assert [(r['method'], r['which'], r['draft']) for r in table.rows] == [
    ('a', 'fastest', '2'),
    ('b', above, 'γ=1'),
    ('c', above, 'γ=1'),
    ('b', 'fastest', '2'),
    ('a', above, 'γ=1'),
    ('c', 'fastest', '2'),
  ]


def test_notes_on_deviations_from_a_task():
  lines = [
    types.SimpleNamespace(id=i, task='t', prompt=str(i), cut=[False, i > 0])
    for i in range(3)
  ]
  task = Task('t', [], score=len, runs_answers=True)
  scores = {i: Score('', 0.0, 0.0, 0, 0.0, None) for i in range(3)}
  unscored, cut = comparison.notes([task], lines, scores, 40)
  assert unscored.startswith('t: the answers were not run')
  assert cut.startswith('t: 2 of 6 turns follow more than 40 tokens')
  assert comparison.notes([Task('t', [])], lines[:1], scores, 40) == []


def test_counts():
  assert [tables.count(n, 'text') for n in (1, 2)] == ['1 text', '2 texts']
