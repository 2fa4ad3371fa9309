"""Reports, their tables and their sections."""

import dataclasses
import json
import types

import pytest
from testing import tiny

from specsamp.drafting import TokenTree, model_drafter
from specsamp.errors import UserError
from specsamp.evaluation import methods, metrics, timing
from specsamp.evaluation.losslessness import Score
from specsamp.evaluation.methods import Method
from specsamp.evaluation.metrics import PaperFigure, Row
from specsamp.evaluation.reporting import comparison, paper_figures, tables
from specsamp.evaluation.reporting.report import Figure, Report, Table
from specsamp.evaluation.tasks import Task
from specsamp.experiments.methods import MethodConfig
from specsamp.utils import schema


def _row(**values):
  """Returns a row of a report, with 1 in all fields that are not given."""
  return Row(
    **dict.fromkeys(Row.__annotations__, 1.0)
    | dict(
      method='m', temperature=0.0, top_p=1.0, verifier='token', lossless=True,
      law='iid', tree=TokenTree.chain(1), tree_attention=True, task='t',
      speedup_95=None, block_efficiency_95=None, acceptance_rate_95=None,
      scores={}, acceptance_by_position=[1.0], paper=None,
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


def test_a_report(tmp_path, capsys):
  report = Report('Title', 'python run.py', packages=['pytest'])
  rows = [{'none': None, 'a': 1.0, 'b': 2.0}, {'b': 0.125}]
  table = Table(rows, column_digits={'b': 3})
  report.add('A note.', '## Heading', table, Figure('plot.png'))
  report.details.append('Small print.')
  report.write(tmp_path, {'runs': [1]})
  text = (tmp_path / 'report.md').read_text()
  parts = [
    '# Title', 'A note.', '## Heading', '| 1.00 | 2.000 |', '|      | 0.125 |',
    '![plot](plot.png)', 'Small print.', f'On {report.device}.',
    '```sh\npython run.py\n```',
  ]  # fmt: skip
  places = [text.index(part) for part in parts]
  assert places == sorted(places) and 'none' not in text
  summary = json.loads((tmp_path / 'summary.json').read_text())
  assert summary['runs'] == [1] and 'pytest' in summary['versions']
  assert summary['device'].endswith('CPU') and report.device in text
  report.show(tmp_path)
  shown = capsys.readouterr().out
  assert shown.startswith('A note.\n\nHeading\n\n') and '2.000' in shown
  assert shown.endswith(f'\n\nReport: {tmp_path / "report.md"}\n')
  assert '|' not in shown and 'plot' not in shown and 'Small' not in shown


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
  assert 'costs more than it gains' in text(30.0)


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
  assert 'typical (NOT lossless)' in shown
  assert (tmp_path / 'by_method.png').read_bytes().startswith(b'\x89PNG')
  # Lossless methods need no remark, and one rule no column.
  for text in (tables.table(rows[:2]).render(), tables.note(rows[:2])):
    assert 'lossless' not in text and 'verifier' not in text
  assert 'verifier' in tables.table(rows).render()


@pytest.mark.parametrize(
  ('values', 'words'),
  [
    (dict(temperature=0.0, top_k=3), 'temperature 0, expected neither'),
    (dict(temperature=1.0, top_k=2.5), 'top_k: got 2.5'),
    *(
      (dict(temperature=0.0, paper=paper), 'paper: got')
      for paper in ('1.5/2', {'qa': 'fast'}, '~', 5j)
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
  row = _row(paper=PaperFigure(speedup=2.61))
  # The column stays though all drafts have the same figure.
  assert '2.61' in tables.table([row]).render()
  assert 'paper' not in tables.table([_row()]).render()
  assert '1.00 / 1.00 (2.61)' in tables.by_task([row]).render()


def test_methods_that_a_report_cannot_distinguish():
  draft = tiny.first_layer(tiny.model(26, 0))
  twins = [
    Method('m', model_drafter(draft, TokenTree(tree)), 'naive', 1.0, 1.0)
    for tree in ((-1, 0, 0, 1, 1, 2), (-1, 0, 0, 1, 2, 2))
  ]
  with pytest.raises(UserError, match='duplicate m 6 nodes, depth 2'):
    methods.check(twins)
  methods.check(twins[:1])


def test_speedup_at_the_round_cost_of_a_paper():
  """EAGLE of the paper's table 1: 3.58 tokens per round at 2.18 times the speed
  are a round of 1.64 steps."""
  plain = _baseline(round_ms=2.5)
  eagle = _row(
    method='EAGLE', speedup=2.0, block_efficiency=4.0, round_ms=5.0,
    paper=PaperFigure(speedup=2.18, tau=3.58), tree=TokenTree.chain(5),
  )  # fmt: skip
  hydra = dataclasses.replace(eagle, method='Hydra', paper=None)
  *_, table = paper_figures.at_paper_cost(
    [plain, eagle, _baseline(round_ms=9.0, temperature=1.0)],
    [(eagle, _cost(draft_ms=1.0, score_ms=3.5)), (hydra, None)],
  )
  first, second = (list(row.values()) for row in table.rows)
  assert first[1:7] == ['EAGLE', 'γ=5', 1.0, 3.5, 4.0, 2.0]
  assert first[7:] == pytest.approx([2.0, 3.58 / 2.18, 4 / (3.58 / 2.18)])
  assert second[3:] == [None, None, 4.0, 2.0, 2.0]


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


def test_shares_of_adaptive_draft_lengths():
  lines = [
    types.SimpleNamespace(
      task='t', sampling_name='greedy', method_name='m', draft_name='γ of 0, 2',
      depths=depths, num_drafted_per_round=drafted,
    )
    for depths, drafted in (((0, 2), [2, 0]), ((0, 2), [0, 0]), ((), [5]))
  ]  # fmt: skip
  *_, table = tables.draft_length_section(lines)
  (row,) = table.rows
  assert (row['0'], row['2'], row['mean']) == (0.75, 0.25, 0.5)
  assert tables.draft_length_section(lines[2:]) == []
