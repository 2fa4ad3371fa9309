"""All experiments in one run: what has ended is not run again."""

import json
import pathlib
import types

import pytest
from ml_collections import ConfigDict

from specsamp import cli
from specsamp.cli import config_files
from specsamp.errors import UserError
from specsamp.experiments import compare, papers

_RUN = dict(
  task='t', temperature=1.0, draft_len=2, lossless=True, speedup=1.5,
  block_efficiency=2.0, sequences=3, method='SpS', branching='γ=2',
)  # fmt: skip


def _load(name, arg):
  return ConfigDict(
    dict(
      title=name, target='', draft='', tasks=('code',), data='', chat=False,
      methods=(dict(name='SpS', branching=(1,), temperature=1.0),), top_p=1.0,
      num_prompts=1, samples=1, max_prompt_tokens=8, max_new_tokens=8, seed=0,
      plot='by_method', passes=False, parts=False, bounds=False, search=False,
      note=arg,
    )
  )  # fmt: skip


def _command(launcher, given):
  return ' '.join([launcher, *given])


def _values(*experiments):
  found = [dict(name=name, minutes=1) | more for name, more in experiments]
  return dict(title='All', data='DATA', experiments=found)


_TWO = _values(('a/one', {}), ('a/two', {}), ('b/none', dict(needs='a folder')))


@pytest.fixture
def ran(monkeypatch):
  """Names of what ran, in order; what is in `fails` is cut off."""
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


def test_it_goes_on_where_it_was(ran, tmp_path, capsys):
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
  # Another config of a name, and a report that is gone, are run.
  other = papers.prepare(
    _TWO, lambda name, _: _load(name, 'another note'), _command
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
  values = config_files.Given(f'{folder}/all.py', arg).load().to_dict()
  job = papers.prepare(values, config_files.load_paper, cli.command)
  assert all('data' not in each.command for each in job.experiments)
  names = [each.name for each in job.experiments]
  found = [
    path.relative_to(folder).with_suffix('').as_posix()
    for path in folder.glob('*/*.py')
  ]
  assert sorted([*names, *job.left_out]) == sorted(found)
  assert [*job.left_out] == ([] if arg else ['parallelspec/table2'])
  assert sum(each.minutes for each in job.experiments) < 180


@pytest.mark.parametrize(
  ('values', 'words'),
  [
    (_values(), 'experiments: got []'),
    (_values(('a', {}), ('a', {})), "experiments: got ['a', 'a']"),
    (_values(('a', dict(minute=3))), 'key of a experiment: got'),
    (_values(('a', dict(minutes='long'))), 'a: minutes: got'),
  ],
)
def test_bad_input(values, words):
  with pytest.raises(UserError) as error:
    papers.prepare(values, _load, _command)
  assert words in str(error.value)
