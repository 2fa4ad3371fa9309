"""Scripts for pods, with stand-ins for the commands of the clusters."""

import os
import pathlib
import subprocess
import sys

import pytest

_PODS = pathlib.Path(__file__).parents[2] / 'launch' / 'pods'

# Arguments that must arrive unchanged.
_FLAGS = [
  'launch/decode.py',
  '--prompt=def f(a, b):',
  "--x=it's $HOME `a` *",
  '',
]

# Replaces the worker's Python: prints its folder and its arguments.
_PYTHON = """#!{python}
import os, sys
print('given', os.getcwd(), sys.argv[1:])
"""

# A slice of three workers: each command in a new shell, as with ssh.
_GCLOUD = """#!/usr/bin/env bash
printf '%s\\n' "${@:1:$#-1}" > gcloud.flags
command=${!#}
for i in 0 1 2; do
  (cd home && WORKER=$i bash -c "${command#--command=}") || exit
done
"""
_CURL = """#!/usr/bin/env bash
[[ " $* " == *' Metadata-Flavor: Google '* ]] || exit 22
case ${!#} in
  */v1/instance/attributes/agent-worker-number) echo "$WORKER" ;;
  */v1/instance/attributes/worker-network-endpoints)
    echo "a:1:10.0.0.1,b:2:10.0.0.2,c:3:10.0.0.3" ;;
  *) exit 22 ;;
esac
"""
_SRUN = """#!/usr/bin/env bash
[[ $1 == --kill-on-bad-exit=1 ]] || exit 1
shift
for i in 0 1; do SLURM_PROCID=$i SLURM_NTASKS=2 "$@" || exit; done
"""


@pytest.fixture
def put(tmp_path, monkeypatch):
  """Returns put(name, text), which makes a command of a text."""
  (tmp_path / 'bin').mkdir()
  monkeypatch.setenv('PATH', f'{tmp_path}/bin:{os.environ["PATH"]}')

  def put(name, text):
    path = tmp_path / 'bin' / name
    path.write_text(text)
    path.chmod(0o755)
    return path

  put('worker_python', _PYTHON.replace('{python}', sys.executable))
  return put


def _run(*command, cwd, **variables):
  return subprocess.run(
    [str(part) for part in command],
    cwd=cwd,
    env=os.environ | {k: str(v) for k, v in variables.items()},
    capture_output=True,
    text=True,
    check=False,
  )


def test_every_worker_of_a_tpu_slice(put, tmp_path):
  put('gcloud', _GCLOUD)
  put('curl', _CURL)
  repository = tmp_path / 'home' / 'my specsamp'
  python = repository / '.venv' / 'bin' / 'python'
  python.parent.mkdir(parents=True)
  python.symlink_to(tmp_path / 'bin' / 'worker_python')
  ended = _run(
    _PODS / 'tpu_pod.sh', 'my-tpu', 'us-central2-b', *_FLAGS,
    cwd=tmp_path, REPOSITORY='my specsamp',
  )  # fmt: skip
  assert ended.returncode == 0, ended.stderr
  given = f'given {repository} {_FLAGS!r}'
  assert ended.stdout.splitlines() == [
    line for i in range(3) for line in (f'process {i} of 3', given)
  ]
  assert (tmp_path / 'gcloud.flags').read_text().splitlines() == [
    'compute', 'tpus', 'tpu-vm', 'ssh', 'my-tpu', '--zone=us-central2-b',
    '--worker=all',
  ]  # fmt: skip


def test_every_task_of_a_slurm_job(put, tmp_path):
  put('srun', _SRUN)
  ended = _run(
    _PODS / 'slurm_gpu.sh', *_FLAGS,
    cwd=tmp_path, PYTHON=tmp_path / 'bin' / 'worker_python',
  )  # fmt: skip
  assert ended.returncode == 0, ended.stderr
  given = f'given {tmp_path} {_FLAGS!r}'
  assert ended.stdout.splitlines() == [
    'process 0 of 2', given, 'process 1 of 2', given
  ]  # fmt: skip


# Replaces python3 on a machine with a GPU: lacks packages until they are
# installed, and prints commands instead of running them, some of which fail.
_ON_GPU = """#!/usr/bin/env bash
case $1 in
  -) cat > /dev/null; [[ -e $MARK ]] || printf '%s ' $LACKS ;;
  -c) echo "${DEVICE:-gpu}" ;;
  -m) [[ $2 != pip ]] || { echo "pip ${*:3}"; ${PIP:-touch} "$MARK"; exit; } ;;&
  *) echo "given $JAX_PLATFORMS ${*}"; [[ "$*" != *"${FAILS:-nothing}"* ]] ;;
esac
"""


def _one_gpu(put, out, **variables):
  own = dict(PYTHON=put('gpu_python', _ON_GPU), MARK=out.parent / 'installed')
  ended = _run(_PODS / 'one_gpu.sh', out, cwd=out.parent, **own | variables)
  lines = [line for line in ended.stdout.splitlines() if 'given' in line]
  return ended, [line.removeprefix('given ') for line in lines]


def test_every_step_runs_once(put, tmp_path):
  out = tmp_path / 'out'
  ended, given = _one_gpu(put, out, FAILS='decode.py')
  assert ended.returncode == 1
  assert 'failed: quickstart; the same command' in ended.stderr
  tests, quickstart, bench, graphs = given
  assert tests == 'cuda,cpu -m pytest -m gpu -rs -W default tests/gpu'
  start = 'cuda,cpu launch/decode.py --config=configs/quickstart.py --workdir='
  assert quickstart.startswith(f'{start}{out}/quickstart-')
  assert bench == (
    'cuda,cpu launch/benchmarks/bench.py --config=configs/accelerator.py '
    f'--workdir={out}/bench --transformers=True'
  )
  assert graphs == bench.replace('--transformers=True', '--graphs')
  # The same command runs only what failed.
  ended, given = _one_gpu(put, out)
  assert ended.returncode == 0, ended
  assert [line.split()[1] for line in given] == ['launch/decode.py']
  assert (out / 'tests.log').read_text().count('given') == 1


@pytest.mark.parametrize(
  ('variables', 'line'),
  [
    ({'DEVICE': 'cpu'}, 'device: got cpu, expected a gpu'),
    ({'LACKS': 'jax>=1'}, 'packages: missing jax>=1, expected all of setup.py'),
  ],
)
def test_one_gpu_refuses(put, tmp_path, variables, line):
  ended, given = _one_gpu(put, tmp_path / 'out', **variables)
  assert (ended.returncode, given) == (2, [])
  assert ended.stderr == f'one_gpu.sh: {line}\n'


def test_one_gpu_in_small_installs_missing_packages(put, tmp_path):
  ended, given = _one_gpu(
    put, tmp_path / 'out', LACKS='tqdm tabulate', SMOKE=1, DEVICE='cpu',
    TRANSFORMERS=False,
  )  # fmt: skip
  assert ended.returncode == 0, ended
  assert 'pip install --quiet --no-deps tqdm tabulate' in ended.stdout
  assert [line.count(':smoke') for line in given] == [0, 1, 1, 1]
  assert given[2].endswith('/bench --transformers=False')


@pytest.fixture
def jobset():
  yaml = pytest.importorskip('yaml')
  return yaml.safe_load((_PODS / 'jobset.yaml').read_text())


def test_the_wiring_of_a_jobset(jobset):
  assert jobset['kind'] == 'JobSet'
  (group,) = jobset['spec']['replicatedJobs']
  job = group['template']['spec']
  assert group['replicas'] == 1
  assert job['completionMode'] == 'Indexed'
  assert job['completions'] == job['parallelism']
  (container,) = job['template']['spec']['containers']
  env = {entry['name']: entry['value'] for entry in container['env']}
  assert env['JAX_NUM_PROCESSES'] == str(job['completions'])
  # JobSet, job, number of the job, index of the pod, subdomain.
  name, network = jobset['metadata']['name'], jobset['spec']['network']
  host = f'{name}-{group["name"]}-0-0.{network["subdomain"]}'
  address, _, port = env['JAX_COORDINATOR_ADDRESS'].partition(':')
  assert address == host and port.isdecimal()
  assert network['enableDNSHostnames'] is True
  assert network['publishNotReadyAddresses'] is True
  volumes = {volume['name'] for volume in job['template']['spec']['volumes']}
  assert {mount['name'] for mount in container['volumeMounts']} == volumes
  assert container['args'][0] == 'launch/pretrain.py'
