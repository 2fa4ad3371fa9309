"""Two processes are one run: the same text, the same losses, one report."""

import json
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
    assert sorted(p.name for p in workdir.iterdir()) == [
      'config.json',
      'metrics.jsonl',
    ]
    # The library of the collectives writes to every output, the text is in one.
    assert first.out.count(' tokens in ') == 2
    for other in others:
      assert ' tokens in ' not in other.out
      assert 'def mean(' not in other.out
    if others:
      for i, each in enumerate([first, *others]):
        assert f'process {i} of 2: 4 of 8 devices\n' in each.err
    else:  # one process is not a distributed run
      assert 'process 0 of' not in first.err
  assert lines[0] == lines[1]
  assert len(lines[0]) == 2


@pytest.mark.slow
def test_an_experiment_is_that_of_one_process(begin, models, data, tmp_path):
  found = []
  for count in (1, 2):
    workdir = tmp_path / str(count)
    _end(
      begin(
        'evaluate',
        '--config=configs/papers/chinchilla/table1.py:smoke',
        f'--config.target={models}/target',
        f'--config.draft={models}/draft',
        f'--config.data={data}',
        "--config.tasks=('spec_bench/mt_bench', 'humaneval')",
        '--config.num_prompts=2',
        '--allow_code_execution',
        f'--workdir={workdir}',
        '--mesh=2x4',
        count=count,
      )
    )
    emitted, scores = (
      [json.loads(line) for line in (workdir / name).read_text().splitlines()]
      for name in ('metrics.jsonl', 'scores.jsonl')
    )
    assert len(emitted) == len(scores) == 4 * 4
    found.append(
      [(line['id'], line['output_tokens'], line['rounds']) for line in emitted]
    )
    summary = json.loads((workdir / 'summary.json').read_text())
    assert {row['verdict'] for row in summary['lossless']} <= {
      'lossless',
      'too few texts',
    }
  assert found[0] == found[1]


@pytest.fixture(scope='module')
def train(begin, tmp_path_factory, sources):
  """Returns train(workdir, count=2), which starts processes that train."""
  corpus = tmp_path_factory.mktemp('corpus')
  text = ''.join(sources.values()).splitlines(keepends=True)
  for i in range(20):
    part = ''.join(text[i * 200 : (i + 1) * 200])
    (corpus / f'part{i}.py').write_text(part)
  return lambda workdir, count: begin(
    'pretrain',
    '--config=configs/pretrain_pycode.py:smoke',
    f'--config.corpus={corpus}',
    f'--config.checkpoint_every={_CHECKPOINT}',
    f'--config.steps={_STEPS}',
    '--mesh=4x2',
    f'--workdir={workdir}',
    count=count,
  )


@pytest.fixture(scope='module')
def undisturbed(train, tmp_path_factory):
  """Returns the losses of a run of one process."""
  workdir = tmp_path_factory.mktemp('undisturbed') / 'run'
  _end(train(workdir, count=1))
  return _losses(workdir)


def _lines(workdir):
  return (workdir / 'metrics.jsonl').read_text().splitlines()


def _losses(workdir):
  lines = [json.loads(line) for line in _lines(workdir)]
  return {(line['kind'], line['step']): line['loss'] for line in lines}


def _assert_same_losses(workdir, undisturbed):
  losses = _losses(workdir)
  assert list(losses) == list(undisturbed)
  np.testing.assert_allclose(
    list(losses.values()), list(undisturbed.values()), atol=1e-4, rtol=0
  )
  assert ('train', _STEPS) in losses


@pytest.mark.parametrize(
  'victim',
  # Process 0 holds the connections, so that its end is seen at once. The end of
  # another one is only seen in its silence.
  [0, pytest.param(1, marks=pytest.mark.slow)],
)
def test_training_is_that_of_one_process(train, undisturbed, tmp_path, victim):
  """One of the two is killed, the other ends, and both are started again."""
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
  begun = [x for x in _lines(workdir) if json.loads(x)['step'] <= _CHECKPOINT]
  assert begun

  first, second = _end(train(workdir, count=2))
  _assert_same_losses(workdir, undisturbed)
  assert 'tok/s' in first.err
  assert 'tok/s' not in second.err  # one bar
  assert model_dir.load(workdir / 'model').num_params > 10_000
  # The lines of the first run were kept, with their times.
  assert _lines(workdir)[: len(begun)] == begun


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
