"""All experiments in one run; finished ones do not run again."""

import json
import pathlib
import types

import pytest

from specsamp import cli
from specsamp.errors import UserError
from specsamp.experiments import compare, papers
from specsamp.experiments.config import ComparisonConfig
from specsamp.utils.schema import config_dict

_RUN = dict(
  task='t', temperature=1.0, draft_len=2, lossless=True, speedup=1.5,
  block_efficiency=2.0, sequences=3, method='SpS', branching='γ=2',
)  # fmt: skip


def _load(path, note=''):
  name = path.removeprefix('configs/papers/').removesuffix('.py')
  method = dict(name='SpS', branching=(1,), temperature=1.0)
  return config_dict(ComparisonConfig, title=name, methods=(method,), note=note)


def _command(launcher, arguments):
  return ' '.join([launcher, *arguments])


def _values(*experiments):
  entries = [dict(name=name, minutes=1) | more for name, more in experiments]
  return dict(title='All', data='DATA', experiments=entries)


_TWO = _values(('a/one', {}), ('a/two', {}), ('b/none', dict(needs='a folder')))


@pytest.fixture
def ran(monkeypatch):
  """Returns the names of what ran; names in `fails` are interrupted."""
  names, fails, wrong = [], set(), set()

  def prepare(values, mesh):
    if values['title'] in wrong:
      raise UserError('data: not there')

    def run(workdir, allow_code_execution, command):
      path = f'configs/papers/{values["title"]}.py'
      assert command == f'evaluate --config={path} --config.data=DATA'
      names.append(values['title'])
      if values['title'] in fails:
        raise KeyboardInterrupt
      summary = dict(runs=[_RUN], lossless=[dict(verdict='LOSSY')])
      (workdir / 'summary.json').write_text(json.dumps(summary))
      (workdir / 'report.md').touch()

    assert values['data'] == 'DATA'
    return types.SimpleNamespace(run=run)

  monkeypatch.setattr(compare, 'prepare', prepare)
  return types.SimpleNamespace(names=names, fails=fails, wrong=wrong)


def _make_workdir(path, config):
  folder = pathlib.Path(path)
  folder.mkdir(parents=True, exist_ok=True)
  return folder


def test_it_resumes(ran, tmp_path, capsys):
  ran.fails.add('a/two')
  job = papers.prepare(_TWO, _load, _command)
  with pytest.raises(KeyboardInterrupt):
    job.run(tmp_path, _make_workdir)
  assert not (tmp_path / papers.SUMMARY).exists()
  ran.fails.clear()
  job.run(tmp_path, _make_workdir)
  assert ran.names == ['a/one', 'a/two', 'a/two']
  job.run(tmp_path, _make_workdir)
  assert len(ran.names) == 3
  text = (tmp_path / papers.SUMMARY).read_text()
  for words in (
    '[a/one](a/one/report.md)', '[a/two](a/two/report.md)',
    '| SpS γ=2, t=1 |', 'b/none: left out, a folder',
  ):  # fmt: skip
    assert words in text
  assert 'SpS γ=2, t=1' in capsys.readouterr().out
  # Another config of the name, and a lost report, are run.
  other = papers.prepare(
    _TWO, lambda path: _load(path, 'another note'), _command
  )
  (tmp_path / 'a/one/report.md').unlink()
  job.run(tmp_path, _make_workdir)
  other.run(tmp_path, _make_workdir)
  assert ran.names[3:] == ['a/one', 'a/one', 'a/two']


def test_a_mistake_in_the_first_leaves_nothing(ran, tmp_path):
  ran.wrong.add('a/one')
  with pytest.raises(UserError, match='not there'):
    papers.prepare(_TWO, _load, _command).run(tmp_path, _make_workdir)
  assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('arg', [None, 'smoke', 'RUNS'])
def test_the_config_names_them_all(arg):
  folder = pathlib.Path('configs/papers')
  name = f'{folder}/all.py' + (f':{arg}' if arg else '')
  config = cli.load_config(name, papers.PapersConfig, 'papers')
  job = papers.prepare(
    config.to_dict(),
    lambda path: cli.load_config(path, ComparisonConfig, 'evaluate'),
    cli.command,
  )
  assert all('data' not in each.command for each in job.experiments)
  names = [each.name for each in job.experiments]
  files = [
    path.relative_to(folder).with_suffix('').as_posix()
    for path in folder.glob('*/*.py')
  ]
  assert sorted([*names, *job.left_out]) == sorted(files)
  assert [*job.left_out] == ([] if arg else ['parallelspec/table2'])
  assert sum(each.minutes for each in job.experiments) < 180


@pytest.mark.parametrize(
  ('values', 'words'),
  [
    (_values(), 'experiments: got []'),
    (_values(('a', {}), ('a', {})), "experiments: got ['a', 'a']"),
    (_values(('a', dict(minute=3))), "experiments: key: got 'minute'"),
    (_values(('a', dict(minutes='long'))), "minutes: got 'long'"),
  ],
)
def test_bad_input(values, words):
  with pytest.raises(UserError) as error:
    papers.prepare(values, _load, _command)
  assert words in str(error.value)
