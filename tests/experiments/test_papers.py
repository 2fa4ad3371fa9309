"""`launch/papers.py`: all experiments in one run, and each of them once."""

import json
import pathlib
import types

import pytest
from testing.launching import run_here

from specsamp import cli
from specsamp.errors import UserError
from specsamp.experiments import compare, papers
from specsamp.experiments.config import ComparisonConfig
from specsamp.utils import schema

_RUN = dict(
  task='t', temperature=1.0, draft_len=2, lossless=True, speedup=1.5,
  block_efficiency=2.0, sequences=3, method='SpS', branching='γ=2',
)  # fmt: skip


@pytest.fixture
def ran(monkeypatch):
  """Returns the titles of runs; those in `fails` and `wrong` raise an error."""
  titles, fails, wrong = [], set(), set()

  def prepare(values, mesh):
    title = values['title']
    if title in wrong:
      raise UserError('data: not there')

    def run(workdir, allow_code_execution, command):
      assert command.startswith('python launch/evaluate.py --config=configs/')
      assert command.endswith(':smoke --config.data=DATA')
      titles.append(title)
      if title in fails:
        raise UserError('interrupted')
      summary = dict(runs=[_RUN], lossless=[dict(verdict='LOSSY')])
      (workdir / 'summary.json').write_text(json.dumps(summary))
      (workdir / 'report.md').touch()

    assert values['data'] == 'DATA'
    return types.SimpleNamespace(run=run)

  monkeypatch.setattr(compare, 'prepare', prepare)
  return types.SimpleNamespace(titles=titles, fails=fails, wrong=wrong)


_ONE, _TWO = 'Speculative sampling: table 1', 'ParallelSpec: figure 4'
_NAMES = ('chinchilla/table1', 'parallelspec/figure4')


def _run(workdir, *flags):
  experiments = tuple(dict(name=n, minutes=1, arg='smoke') for n in _NAMES)
  return run_here(
    'papers',
    f'--config.experiments={experiments}',
    '--config.data=DATA',
    f'--workdir={workdir}',
    *flags,
  )


def test_it_resumes(ran, tmp_path):
  ran.fails.add(_TWO)
  assert _run(tmp_path / 'run').code == 2
  assert not (tmp_path / 'run' / papers.SUMMARY).exists()
  ran.fails.clear()
  for _ in range(2):
    ended = _run(tmp_path / 'run')
    assert ended.code == 0, ended
    assert ran.titles == [_ONE, _TWO, _TWO]
  text = (tmp_path / 'run' / papers.SUMMARY).read_text()
  for name in _NAMES:
    assert f'[{name}]({name}/report.md)' in text
  assert '| SpS γ=2, t=1 |' in text and 'table2: left out' in text
  assert 'SpS γ=2, t=1' in ended.out
  # A lost report is made again.
  (tmp_path / 'run' / _NAMES[0] / 'report.md').unlink()
  assert _run(tmp_path / 'run').code == 0
  assert ran.titles[3:] == [_ONE]


def test_a_mistake_in_the_first_leaves_nothing(ran, tmp_path):
  ran.wrong.add(_ONE)
  ended = _run(tmp_path / 'run')
  assert ended.code == 2 and ended.err.endswith('papers.py: data: not there\n')
  assert not [*(tmp_path / 'run').glob('[!.]*')]


@pytest.mark.parametrize('arg', [None, 'smoke', 'RUNS'])
def test_the_config_names_them_all(arg):
  folder = pathlib.Path('configs/papers')
  name = f'{folder}/all.py' + (f':{arg}' if arg else '')
  config = cli.load_config(name, papers.PapersConfig, 'papers')
  all_papers = schema.read(papers.PapersConfig, config.to_dict())
  configs = papers.load_configs(
    all_papers, lambda path: cli.load_config(path, ComparisonConfig, 'evaluate')
  )
  files = {
    path.relative_to(folder).as_posix() for path in folder.glob('*/*.py')
  }
  missing = files - {f'{name}.py' for name in configs}
  assert missing == (set() if arg else {'parallelspec/table2.py'})
  assert sum(each.minutes for each in all_papers.experiments) < 180
