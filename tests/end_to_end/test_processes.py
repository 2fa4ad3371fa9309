"""Several processes: one run of two, a killed run, two runs in one folder."""

import json
import os
import re
import signal
import socket
import time

import numpy as np
import pytest
from testing import tiny
from testing.launching import start

from specsamp.checkpoints import model_dir
from specsamp.language_model import LanguageModel

pytestmark = pytest.mark.extended

_CHECKPOINT = 5  # the first one
_STEPS = 60  # enough of them after it to be killed in


@pytest.fixture(scope='module')
def begin(server, tmp_path_factory):
  """Returns begin(name, *flags, count=2), which starts processes.

  They have 8 devices together.
  """
  running = []

  def begin(name, *flags, count):
    variables = {'JAX_NUM_CPU_DEVICES': str(8 // count)}
    if count > 1:
      with socket.socket() as free:
        free.bind(('localhost', 0))
        port = free.getsockname()[1]
      variables['JAX_COORDINATOR_ADDRESS'] = f'localhost:{port}'
      variables['JAX_NUM_PROCESSES'] = str(count)
    made = []
    for i in range(count):
      folder = tmp_path_factory.mktemp(f'process{i}')
      own = {'JAX_PROCESS_ID': str(i)} if count > 1 else {}
      made.append(
        start(server, folder, name, *flags, variables=variables | own)
      )
    running.extend(made)
    return made

  yield begin
  for started in running:
    started.process.kill()


def _end(processes):
  ended = [started.join(180) for started in processes]
  for each in ended:
    assert each.code == 0, each
  return ended


@pytest.fixture(scope='module')
def models(tmp_path_factory, tokenizer):
  """A pair with heads for four shards."""
  root = tmp_path_factory.mktemp('models')
  target = tiny.model(512, seed=0, num_heads=4, num_kv_heads=2)
  for name, model in (('target', target), ('draft', tiny.first_layer(target))):
    model = LanguageModel(model.transformer, model.params, tokenizer)
    model_dir.save(model, root / name)
  return root


def test_decoding_is_that_of_one_process(begin, models, tmp_path):
  file = tmp_path / 'prompts'
  file.write_text('def mean(\nclass Stack:\n')
  lines = []
  for count in (1, 2):
    workdir = tmp_path / str(count)
    first, *others = _end(
      begin(
        'decode',
        '--config=configs/quickstart.py:smoke',
        f'--config.target={models}/target',
        f'--config.draft={models}/draft',
        '--config.max_new_tokens=8',
        f'--prompts_file={file}',
        f'--workdir={workdir}',
        '--mesh=2x4',
        count=count,
      )
    )
    written = (workdir / 'metrics.jsonl').read_text().splitlines()
    written = [json.loads(line) for line in written]
    for line in written:
      assert line.pop('seconds') > 0 and line.pop('prefill_seconds') > 0
    lines.append(written)
    # The library of the collectives writes to every output, the text is in one.
    assert first.out.count(' tokens in ') == 2
    for i, other in enumerate(others, start=1):
      assert ' tokens in ' not in other.out and 'def mean(' not in other.out
      assert f'process {i} of 2: 4 of 8 devices\n' in other.err
  assert lines[0] == lines[1]
  assert len(lines[0]) == 2


@pytest.fixture(scope='module')
def train(begin):
  """Returns train(workdir, count), which starts processes that train."""
  return lambda workdir, count: begin(
    'pretrain',
    '--config=configs/pretrain_pycode.py:smoke',
    '--config.corpus=configs',
    f'--config.checkpoint_every={_CHECKPOINT}',
    f'--config.steps={_STEPS}',
    '--mesh=4x2',
    f'--workdir={workdir}',
    count=count,
  )


def _losses(workdir):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  return {(line['kind'], line['step']): line['loss'] for line in lines}


@pytest.mark.parametrize(
  'victim',
  # Process 0 holds the connections, so that its end is seen at once. The end of
  # another one is only seen in its silence.
  [0, pytest.param(1, marks=pytest.mark.slow)],
)
def test_training_is_that_of_one_process(train, tmp_path, victim):
  """One of the two is killed, the other ends, and both are started again."""
  _end(train(tmp_path / 'undisturbed', count=1))
  workdir = tmp_path / 'run'
  processes = train(workdir, count=2)
  deadline = time.monotonic() + 120
  while not (workdir / 'checkpoints' / str(_CHECKPOINT)).exists():
    assert time.monotonic() < deadline
    assert all(started.process.is_alive() for started in processes)
    time.sleep(0.002)
  processes[victim].process.kill()
  assert processes[victim].join(10).code == -signal.SIGKILL
  assert processes[1 - victim].join(60).code != 0
  assert not (workdir / 'model').exists()
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  begun = [x for x in lines if json.loads(x)['step'] <= _CHECKPOINT]
  assert begun

  first, second = _end(train(workdir, count=2))
  losses, whole = _losses(workdir), _losses(tmp_path / 'undisturbed')
  assert list(losses) == list(whole) and ('train', _STEPS) in losses
  np.testing.assert_allclose(
    list(losses.values()), list(whole.values()), atol=1e-4, rtol=0
  )
  assert 'tok/s' in first.err
  assert 'tok/s' not in second.err  # one bar
  assert model_dir.load(workdir / 'model').num_params > 10_000
  # The lines of the first run were kept, with their times.
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  assert lines[: len(begun)] == begun


def test_a_mistake_that_one_process_sees_ends_all(begin, tmp_path):
  corpus = tmp_path / 'corpus'
  corpus.mkdir()
  for i in range(20):
    (corpus / f'{i}.py').write_text('few = words\n')
  processes = begin(
    'pretrain',
    '--config=configs/pretrain_pycode.py:smoke',
    f'--config.corpus={corpus}',
    f'--workdir={tmp_path / "run"}',
    '--mesh=4x2',
    count=2,
  )
  first, second = (started.join(120) for started in processes)
  assert first.code == second.code == 2
  assert 'pretrain.py: ' in first.err.splitlines()[-1]
  assert 'failed; process 0 reports the reason' in second.err.splitlines()[-1]


def _read(workdir):
  """Returns the lines of both files, without times."""
  lines = []
  for name in ('metrics.jsonl', 'scores.jsonl'):
    text = (workdir / name).read_text()
    lines += [json.loads(line) for line in text.splitlines()]
  times = ('prefill_seconds', 'decode_seconds')
  return [{k: line[k] for k in line if k not in times} for line in lines]


def test_a_kill_changes_nothing(server, folders, data, tmp_path):
  begin = lambda name: start(
    server, tmp_path, 'evaluate',
    '--config=configs/papers/chinchilla/table1.py:smoke',
    f'--config.target={folders}/target',
    f'--config.draft={folders}/draft',
    f'--config.data={data}',
    "--config.tasks=('spec_bench/mt_bench', 'spec_bench/qa')",
    '--config.num_prompts=2',
    '--config.samples=2',
    '--config.max_prompt_tokens=40',
    f'--workdir={tmp_path}/{name}',
    variables={
      'JAX_COMPILATION_CACHE_DIR': str(tmp_path / 'programs'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    },
  )  # fmt: skip
  ended = begin('whole').join(240)
  assert ended.code == 0, ended.err
  whole, log = _read(tmp_path / 'whole'), tmp_path / 'killed/metrics.jsonl'
  count = sum('output_tokens' in line for line in whole)

  started = begin('killed')
  lines = lambda: log.read_text().count('\n') if log.exists() else 0
  while lines() < count // 2 and started.process.is_alive():
    time.sleep(0.002)
  os.kill(started.process.pid, signal.SIGKILL)
  started.process.join()
  assert 0 < lines() < count  # it was interrupted midway
  ended = begin('killed').join(240)
  assert ended.code == 0, ended.err
  assert _read(tmp_path / 'killed') == whole
  names = lambda name: sorted(p.name for p in (tmp_path / name).iterdir())
  assert names('killed') == names('whole')


def test_one_of_two_runs_in_a_folder_continues(server, tmp_path):
  """The other one ends with an error."""
  both = []
  for i in range(2):
    (tmp_path / str(i)).mkdir()
    started = start(
      server,
      tmp_path / str(i),
      'pretrain',
      '--config=configs/pretrain_pycode.py:smoke',
      '--config.corpus=configs',
      '--config.steps=2',
      f'--workdir={tmp_path}/run',
    )
    both.append(started)
  ended = sorted(started.join(240) for started in both)
  assert [each.code for each in ended] == [0, 2], ended
  assert re.fullmatch(
    r'pretrain\.py: folder \S+: pretrain\.py \(process \d+ on .* since .*\) is '
    r'writing in it; .*\n',
    ended[1].err,
  )
