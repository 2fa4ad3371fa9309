"""Comparisons: what they write, and that they go on where they were."""

import dataclasses
import importlib.util
import json
import pathlib

import numpy as np
import pytest
import tiny

from specsamp.decoding import Generation
from specsamp.drafting import (
  TokenTree,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
  trained_drafter,
)
from specsamp.errors import UserError
from specsamp.evaluation import methods, metrics, runner, timing
from specsamp.evaluation.methods import Method
from specsamp.evaluation.metrics import Figures, PaperFigure, Row
from specsamp.evaluation.reporting import paper_figures, report, tables
from specsamp.evaluation.tasks import Question, Task
from specsamp.jobs import compare, config, measured_trees

_SETTINGS = runner.Settings(max_prompt_tokens=8, max_new_tokens=1, seed=0)
_PAPERS = pathlib.Path('configs/papers')
_TABLE2 = _PAPERS / 'parallelspec/table2.py'  # its argument names a drafter
_CONFIGS = [
  *sorted(_PAPERS.glob('*/*.py')),
  pathlib.Path('configs/humaneval.py'),
  pathlib.Path('configs/spec_bench.py'),
]
_each = pytest.mark.parametrize(
  'path', _CONFIGS, ids=lambda path: f'{path.parent.name}-{path.stem}'
)


def _get_config(path, arg):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(arg)


@_each
@pytest.mark.parametrize('arg', [None, 'smoke'])
def test_every_config_can_run(path, arg, data):
  """Everything is checked but the decoding itself."""
  if path == _TABLE2 and not arg:
    with pytest.raises(ValueError, match='drafter'):
      _get_config(path, arg)
    return
  values = _get_config(path, arg).to_dict() | {'data': str(data)}
  job = compare.prepare(values)
  assert len(job.methods) > 1 and job.tasks
  with pytest.raises((ValueError, UserError), match='smoke|nope'):
    compare.prepare(_get_config(path, 'nope').to_dict())


@_each
def test_every_config_knows_the_papers_pairs(path, data):
  """Whose weights are not here: their folders are asked for."""
  if path == _TABLE2:
    pytest.skip('it compares drafters of the embedded target')
  for pair in ('vicuna-7b+vicuna-68m', 'llama-33b+llama-68m,smoke'):
    values = _get_config(path, pair).to_dict()
    assert values['target'] == f'MODELS/{pair.partition("+")[0]}'
    with pytest.raises(UserError, match='MODELS'):
      compare.prepare(values | {'data': str(data)})


def test_a_comparison(launch, folders, tmp_path):
  workdir = tmp_path / 'run'
  flags = (
    '--config=configs/papers/mcsd/figure4.py:smoke',
    f'--workdir={workdir}',
    f'--config.target={folders}/target',
    f'--config.draft={folders}/draft',
    '--config.max_prompt_tokens=40',
    '--config.num_prompts=3',
  )
  ended = launch('evaluate', *flags)
  assert ended.code == 0, ended.err
  assert '| multi-candidate | fastest' in ended.out
  assert sorted(path.name for path in workdir.iterdir()) == [
    'by_budget.png',
    'config.json',
    'metrics.jsonl',
    'report.md',
    'scores.jsonl',
    'summary.json',
  ]
  runs = json.loads((workdir / 'summary.json').read_text())['runs']
  assert [(run['branching'], run['nodes']) for run in runs] == [
    ('', 1),
    ('2x2', 7),
    ('1x4', 6),
  ]
  for run in runs:
    assert run['tokens'] == 3 * 16 and run['sequences'] == 3
  text = (workdir / 'report.md').read_text()
  assert '2x2' in text and 'by_budget.png' in text

  # Nothing left to do.
  path = workdir / 'metrics.jsonl'
  again = path.read_text().splitlines()
  assert len(again) == 9
  assert launch('evaluate', *flags).code == 0
  assert path.read_text().splitlines() == again
  # Another comparison does not go on in this folder.
  ended = launch('evaluate', *flags, '--config.seed=1')
  assert ended.code == 2 and 'something else' in ended.err


def test_search_and_passes(monkeypatch, folders, tmp_path):
  # Its time is compilation: few sizes, and one tree's parts for all.
  monkeypatch.setattr(measured_trees, 'CANDIDATES', 2)
  monkeypatch.setattr(measured_trees, 'SIZES', (1, 3))
  measure, timed = timing.measure, []

  def measure_once(*args):
    timed[:] = timed or measure(*args, repeats=1)
    return timed

  monkeypatch.setattr(timing, 'measure', measure_once)
  values = dict(
    target=f'{folders}/target',
    draft=f'{folders}/draft',
    max_prompt_tokens=40,
    plot='by_budget',  # which leaves out what is no branching
  )
  config = _get_config(_PAPERS / 'mcsd/best_tree.py', 'smoke')
  values |= config.to_dict() | values
  # The other temperature is other values of the same programs.
  values['methods'] = [m for m in values['methods'] if m['temperature']]
  compare.prepare(values).run(tmp_path)
  summary = json.loads((tmp_path / 'summary.json').read_text())
  methods = [run['method'] for run in summary['runs']]
  assert methods[:3] == ['autoregressive', 'speculative (SD)', 'branching']
  assert set(methods[3:]) == {'best static tree'}
  # The chain, the fastest tree, that of highest τ.
  costs = summary['parts']
  assert len(costs) in (2, 3) and costs[0]['branching'][0] == 'γ'
  assert all(cost['ideal_speedup'] > 0 for cost in costs)
  measured = json.loads((tmp_path / 'acceptance-1.json').read_text())
  assert 0 < sum(measured['acceptance']) <= 1
  text = (tmp_path / 'report.md').read_text()
  for words in ('Best static trees at t=1', 'What a larger pass costs'):
    assert words in text


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
  answer = Generation([[1]], ['x'], np.ones(1), one, one, one, one, 0.0, 1.0)
  monkeypatch.setattr(runner, 'generate', lambda *_, **__: answer)
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
  report.write(tmp_path, 'Title', rows, [], 'by_method')
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


def test_every_program_is_warm_before_it_is_timed(monkeypatch, tmp_path):
  """When a run that was cut off goes on, too."""
  prompts = [Question(name, name * 10) for name in 'abc']
  methods = [
    Method('autoregressive', None, 'token', t, 1.0) for t in (0.0, 1.0)
  ]
  calls = []

  target = tiny.model(26, 0)

  def generate(_, rows, **args):
    text = target.tokenizer.decode(rows[0])
    calls.append((text[0], args['sampling'].temperature))
    one = np.ones((1, 0), np.int32)
    return Generation([[1]], ['x'], np.ones(1), one, one, one, one, 0.0, 1.0)

  monkeypatch.setattr(runner, 'generate', generate)
  run = lambda: runner.compare(
    target,
    methods,
    [Task('letters', prompts)],
    _SETTINGS,
    tmp_path / 'metrics.jsonl',
  )
  lines = run()
  every = [(name, t) for name in 'abc' for t in (0.0, 1.0)]
  assert calls == every[:2] + every
  path = tmp_path / 'metrics.jsonl'
  path.write_text(''.join(path.read_text().splitlines(True)[:3]))
  calls.clear()
  assert run() == lines
  # Both methods are compiled before the first of them is timed.
  assert sorted(t for _, t in calls[:2]) == [0.0, 1.0]
  assert calls[2:] == every[3:]
  # Another text by the same name is another line.
  prompts[0] = Question('a', 'z' * 10)
  calls.clear()
  run()
  assert calls[2:] == [('z', 0.0), ('z', 1.0)]


def test_a_program_that_was_let_go_is_not_timed(monkeypatch, tmp_path):
  """Methods take turns: with one program too few each compiles every time."""
  calls, made = [], 0
  target = tiny.model(26, 0)

  def generate(_, rows, **args):
    nonlocal made
    calls.append(args['sampling'].temperature)
    made += calls[-1:] != calls[-2:-1]  # another's was let go
    one = np.ones((1, 0), np.int32)
    return Generation([[1]], ['x'], np.ones(1), one, one, one, one, 0.0, 1.0)

  monkeypatch.setattr(runner, 'generate', generate)
  monkeypatch.setattr(runner.programs, 'num_made', lambda: made)
  runner.compare(
    target,
    [Method('autoregressive', None, 'token', t, 1.0) for t in (0.0, 1)],
    [Task('letters', [Question(name, name * 10) for name in 'abc'])],
    _SETTINGS,
    tmp_path / 'metrics.jsonl',
  )
  # Warmed, then each twice in a row, of which the second counts.
  assert calls == [0, 1] + [0, 0, 1, 1] * 3


def test_the_fastest_draft_goes_on(monkeypatch, tmp_path):
  """For each temperature its own, and the same when a run goes on."""
  target = tiny.model(26, 0)
  draft = tiny.first_layer(target)
  methods = [
    Method(name, drafter, 'token', temperature, 1.0)
    for temperature in (0.0, 1.0)
    for name, drafter in (
      ('autoregressive', None),
      *(('speculative', model_drafter(draft, n)) for n in (1, 2, 3)),
    )
  ]
  seconds = {(0.0, 2): 1.0, (1.0, 3): 1.0}  # others are slower
  calls = []

  def generate(_, rows, *, drafter, sampling, **args):
    name = target.tokenizer.decode(rows[0])[0]
    depth = drafter.tree.depth if drafter else 0
    calls.append((name, sampling.temperature, depth))
    one = np.ones((1, depth), np.int32)
    # Behind the sweep all change places, which changes no choice.
    took = seconds.get(calls[-1][1:], 2.0) if name in 'ab' else 9.0
    return Generation([[1]], ['x'], np.ones(1), one, one, one, one, 0.0, took)

  monkeypatch.setattr(runner, 'generate', generate)
  path = tmp_path / 'metrics.jsonl'
  run = lambda sweep: runner.compare(
    target,
    methods,
    [Task('letters', [Question(name, name * 10) for name in 'abcd'])],
    dataclasses.replace(_SETTINGS, sweep_prompts=sweep),
    path,
  )
  lines = run(2)
  found = [(ln.prompt, ln.temperature, ln.tree.depth) for ln in lines]
  few = [(0.0, 0), (0.0, 2), (1.0, 0), (1.0, 3)]
  assert found == [
    *((name, t, n) for name in 'ab' for t in (0.0, 1.0) for n in range(4)),
    *((name, *each) for name in 'cd' for each in few),
  ]
  assert len(calls) == 8 + len(lines)  # and each program once before
  written = path.read_text().splitlines(True)
  for kept in (3, 18, 23):
    path.write_text(''.join(written[:kept]))
    calls.clear()
    assert run(2) == lines
    assert {c[0] for c in calls if c[0] in 'ab'} <= set('ab'[kept // 8 :])
  path.unlink()
  assert len(run(None)) == len(run(9)) == 4 * len(methods)


def test_the_papers_figures_stand_beside_ours():
  read = lambda paper: config.MethodConfig.read(
    dict(name='m', branching=(1,), temperature=0.0, paper=paper)
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


def test_another_drafter_is_decoded_anew(monkeypatch, tmp_path):
  """Of the same name and shape, in a folder that was trained again."""
  one = np.ones((1, 2), np.int32)
  answer = Generation([[1]], ['x'], np.ones(1), one, one, one, one, 0.0, 1.0)
  calls = []
  monkeypatch.setattr(
    runner,
    'generate',
    lambda *_, drafter, **__: calls.append(drafter) or answer,
  )
  target = tiny.model(26, 0)

  def compare(drafter):
    calls.clear()
    runner.compare(
      target,
      [Method('chain', drafter, 'token', 1.0, 1.0)],
      [Task('letters', [Question('a', 'abc')])],
      _SETTINGS,
      tmp_path / 'metrics.jsonl',
    )
    return len(calls)

  first, other = (
    trained_drafter(tiny.trained(target, 'medusa', seed=seed), target, 2)
    for seed in (1, 2)
  )
  assert [compare(d) for d in (first, first, other)] == [2, 0, 2]


def test_another_setting_is_decoded_anew():
  """Of drafters of the same name, shape and weights."""
  target = tiny.model(26, 0)
  model = model_drafter(tiny.first_layer(target), 2)
  settings = ((3, 1), (4, 1), (3, 2))
  alone = [ngram_drafter(2, *n) for n in settings]
  either = [ngram_or_model(ngram, model) for ngram in alone]

  def identify(drafter):
    method = Method('lookup', drafter, 'naive', 1.0, 1.0)
    task = Task('letters', [Question('a', 'abc')])
    return runner._head(method, [], task, task.prompts[0], 0, 0, []).id

  for drafters in (alone, either):
    assert len({identify(drafter) for drafter in drafters}) == len(settings)
  assert identify(ngram_drafter(2, 4, 1)) == identify(alone[1])


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
      config.MethodConfig.read(
        dict(name='EAGLE', branching=(1,), temperature=0.0, paper=paper)
      )
