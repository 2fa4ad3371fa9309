"""What a report has of rows that are written here."""

import dataclasses
import functools
import json

import numpy as np
import pytest
from testing import tiny

from specsamp.decoding import Generation
from specsamp.drafting import (
  TokenTree,
  model_drafter,
)
from specsamp.errors import UserError
from specsamp.evaluation import methods, metrics, runner, timing
from specsamp.evaluation.methods import Method
from specsamp.evaluation.metrics import Figures, PaperFigure, Row
from specsamp.evaluation.reporting import comparison, paper_figures, tables
from specsamp.evaluation.tasks import Question, Task
from specsamp.experiments.method_config import MethodConfig
from specsamp.utils import schema

_SETTINGS = runner.Settings(max_prompt_tokens=8, max_new_tokens=1, seed=0)


def _row(**values):
  """A row of a report, of ones where nothing else is given."""
  ones = dict.fromkeys(Figures.__dataclass_fields__, 1.0)
  return Row(
    **ones
    | dict(
      method='m', temperature=0.0, top_p=1.0, verifier='token', lossless=True,
      law='iid', tree=TokenTree.chain(1), tree_attention=True, task='t',
      speedup=1.0, speedup_95=None, block_efficiency_95=None,
      acceptance_rate_95=None, scores={},
    )
    | values
  )  # fmt: skip


def _cost(**values):
  fields = dict.fromkeys(timing.Times.__dataclass_fields__, 1.0)
  shape = dict(temperature=0.0, top_p=1.0, tree=TokenTree.chain(1))
  return timing.RoundCost(**fields | shape | values)


def test_where_a_larger_tree_is_even():
  """A tree of twice the tokens: it may take twice the chain's round, in all."""
  chain = _row(block_efficiency=2.0, tree=TokenTree.chain(2))
  tree = _row(block_efficiency=4.0, tree=TokenTree.branching((4, 2)))
  chain_cost = _cost(round_ms=6.0, score_ms=4.0)
  text = paper_figures.break_even(
    chain, tree, chain_cost, _cost(round_ms=15.0, score_ms=12.0)
  )
  assert '2.00 times the tokens' in text and '3.00 times the 4.00 ms' in text
  assert 'less than 9.00 ms, 2.25 times' in text
  text = paper_figures.break_even(
    chain, tree, chain_cost, _cost(round_ms=30.0, score_ms=12.0)
  )
  assert 'slower whatever' in text


def test_a_report_says_what_is_not_lossless(monkeypatch, tmp_path):
  one = np.ones((1, 2), np.int32)
  answer = Generation(
    [[1]], ['x'], np.ones(1, int), [[0]], one, one, one, one, 0.0, 1.0
  )
  monkeypatch.setattr(runner, 'complete', lambda _: answer)
  target = tiny.model(26, 0)
  drafter = model_drafter(tiny.first_layer(target), 2)
  method = lambda name, verifier, drafter=drafter: Method(
    name, drafter, verifier, 1.0, 1.0
  )
  methods = [
    method('autoregressive', 'token', None),
    method('chain', 'token'),
    method('typical', 'typical_lossy'),
  ]
  assert [m.label.lossless for m in methods] == [True, True, False]
  lines = runner.compare(
    target,
    methods,
    [Task('letters', [Question('a', 'abc')])],
    _SETTINGS,
    tmp_path / 'metrics.jsonl',
  )
  written = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  expected = [True, True, False]
  assert [line.lossless for line in lines] == expected
  assert [json.loads(line)['lossless'] for line in written] == expected

  rows = metrics.summarize(lines)
  comparison.write(tmp_path, 'Title', rows, [], 'by_method')
  runs = json.loads((tmp_path / 'summary.json').read_text())['runs']
  assert [run['lossless'] for run in runs] == [True, True, False]
  text = (tmp_path / 'report.md').read_text()
  marked = [line for line in text.splitlines() if 'NOT lossless' in line]
  assert len(marked) == 4  # its rows, and the note
  assert '| typical (NOT lossless) |' in marked[0]
  assert 'A method that is NOT lossless' in marked[1]
  assert 'typical (NOT lossless)' in paper_figures.best(rows)
  # Where all methods are lossless nothing is said of it.
  for text in (tables.table(rows[:2]), tables.note(rows[:2])):
    assert 'lossless' not in text
  # A table of one rule has no column of rules: its row still says so.
  assert 'NOT lossless' in tables.table([rows[0], rows[2]])


@pytest.mark.parametrize(
  ('values', 'words'),
  [
    (dict(temperature=0.0, top_k=3), 'temperature 0, expected neither'),
    (dict(temperature=0.0, top_p=0.9), 'temperature 0, expected neither'),
    (dict(temperature=1.0, top_k=-1), 'top_k: got -1'),
    (dict(temperature=1.0, top_k=2.5), 'top_k: got 2.5'),
    (dict(temperature=1.0, top_p='most'), 'top_p: got'),
  ],
)
def test_a_sampling_that_there_is_not(values, words):
  with pytest.raises(UserError, match=words):
    schema.read(MethodConfig, dict(name='m', branching=(1,)) | values)


def test_the_papers_figures_stand_beside_ours():
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
  assert '2.61' in tables.table([row])  # though all drafts have the same
  assert 'paper' not in tables.table([_row()])
  assert '1.00 / 1.00 (2.61)' in tables.by_task([row])


def test_a_report_could_not_tell_these_apart():
  target = tiny.model(26, 0)
  method = lambda tree: Method(
    'm', model_drafter(tiny.first_layer(target), tree), 'naive', 1.0, 1.0
  )
  twins = [TokenTree((-1, 0, 0, 1, 1, 2)), TokenTree((-1, 0, 0, 1, 2, 2))]
  with pytest.raises(UserError, match='6 nodes, depth 2 is there twice'):
    methods.check([method(tree) for tree in twins])
  methods.check([method(twins[0]), method(TokenTree.chain(5))])


def test_what_rounds_cost():
  """EAGLE of the paper's table 1: 3.58 tokens a round at 2.18 times the speed,
  so a round of 1.64 steps."""
  plain = _row(method='autoregressive', round_ms=2.5)
  eagle = _row(
    method='EAGLE', speedup=2.0, block_efficiency=4.0, round_ms=5.0,
    paper=PaperFigure(speedup=2.18, tau=3.58), tree=TokenTree.chain(5),
  )  # fmt: skip
  other = _row(method='autoregressive', round_ms=9.0, temperature=1.0)
  hydra = dataclasses.replace(eagle, method='Hydra', paper=None)
  figure = PaperFigure(speedup=2.18, tau=3.58, derived=True)
  derived = dataclasses.replace(eagle, method='derived', paper=figure)
  cost = _cost(draft_ms=1.0, score_ms=3.5)
  text = paper_figures.at_paper_cost(
    [plain, eagle, other], [(row, cost) for row in (eagle, hydra, derived)]
  )
  lookup = paper_figures.at_paper_cost([plain, eagle], [(eagle, None)])
  assert '| EAGLE    | γ=5     |            |' in lookup
  cells = [
    [cell.strip() for cell in line.strip('|').split('|')]
    for line in text.splitlines()
    if line.startswith('| greedy')
  ]
  assert cells[0][1:] == [
    'EAGLE', 'γ=5', '1.00', '3.50', '4.00', '2.00', '2.00', '1.64', '2.44',
  ]  # fmt: skip
  assert cells[1][-3:] == ['2.00', '', '']
  assert cells[2][-3:] == cells[0][-3:]
  for paper in ('1.5/2', 'fast', {'qa': 'fast'}, '1.2.3 / 0', '~', 5j):
    with pytest.raises(UserError, match='paper: got'):
      schema.read(
        MethodConfig,
        dict(name='EAGLE', branching=(1,), temperature=0.0, paper=paper),
      )


def test_no_row_stands_twice_among_the_best():
  """A chain is as long as the trees of several rules."""
  tree = TokenTree.branching((2,))
  rows = [
    _row(method=rule, tree=shape, speedup=best, block_efficiency=best)
    for rule in 'abc'
    for shape, best in ((TokenTree.chain(1), 1.0), (tree, 2.0))
  ]
  lines = paper_figures.best(rows).splitlines()[4:]
  named = [[c.strip() for c in line.split('|')[2:5]] for line in lines]
  above = 'as long as the fastest above'
  assert named == [
    ['a', 'fastest', '2'],
    ['b', above, 'γ=1'],
    ['c', above, 'γ=1'],
    ['b', 'fastest', '2'],
    ['a', above, 'γ=1'],
    ['c', 'fastest', '2'],
  ]


def test_a_terminal_is_shown_no_markdown():
  section = functools.partial(paper_figures.best, [_row(), _row(speedup=2.0)])
  assert '|' in tables.in_style(section, 'github')
  assert '|' not in tables.in_style(section, 'simple')
  assert tables.in_style('a | b', 'simple') == 'a | b'
  assert [tables.count(n, 'prompt') for n in (1, 2)] == [
    '1 prompt',
    '2 prompts',
  ]
