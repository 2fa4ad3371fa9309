"""Strict numerics for every test, eight devices for meshes, and lanes.

CONTRIBUTING.md describes the lanes.
"""

import gc
import importlib.metadata
import multiprocessing
import os
import pathlib
import sysconfig

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# Compiling tiny programs takes longer than running them. These settings halve
# that, in the last step of the compiler only.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  # The older of its two emitters (later versions have one, and refuse the
  # flag), and a program in one piece, because the other worker has the other
  # core.
  os.environ.setdefault(
    'XLA_FLAGS',
    '--xla_cpu_use_fusion_emitters=false '
    '--xla_cpu_parallel_codegen_split_count=1',
  )
# Nothing is written into the user's home, and tested programs are compiled.
os.environ.setdefault('JAX_ENABLE_COMPILATION_CACHE', 'false')
# Without a driver jax refuses the compiler for GPUs otherwise.
os.environ.setdefault('JAX_SKIP_CUDA_CONSTRAINTS_CHECK', '1')
# Threads of torch wait actively, which slows down the other worker.
os.environ.setdefault('OMP_NUM_THREADS', '1')

import jax
import numpy as np
import pytest
from testing import benchmarks

from specsamp.data import tokenizers

# Virtual devices for the meshes; other programs run on the first of them.
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_dtype_promotion', 'strict')
jax.config.update('jax_numpy_rank_promotion', 'raise')


def pytest_addoption(parser):
  parser.addoption('--slow', action='store_true', help='proofs at full size')


# All tests in the first folders are integration, in the others extended.
_INTEGRATION = ('end_to_end', 'notebooks', 'serving', 'sharding')
_EXTENDED = ('notebooks', 'checkpoints/test_huggingface.py')
# The packages without which tests with a marker are skipped.
_PACKAGES = {
  'tpu_aot': ['libtpu'],
  'gpu_aot': ['jax-cuda12-plugin'],
  'parity': ['torch', 'transformers'],
}


def _is_installed(package) -> bool:
  try:
    importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return False
  return True


@pytest.hookimpl(tryfirst=True)  # before `-m` reads the markers
def pytest_collection_modifyitems(config, items):
  for item in items:
    path = item.path.relative_to(pathlib.Path(__file__).parent).as_posix()
    if path.startswith(_EXTENDED):
      item.add_marker('extended')
    if path.startswith(_INTEGRATION) or item.get_closest_marker('extended'):
      item.add_marker('integration')
  if not config.getoption('--slow'):
    slow = [item for item in items if item.get_closest_marker('slow')]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]
  for item in items:
    for marker, packages in _PACKAGES.items():
      if item.get_closest_marker(marker):
        if marker.endswith('_aot'):
          item.fixturenames.insert(0, 'optimized')
        missing = [name for name in packages if not _is_installed(name)]
        if missing:
          reason = f'needs {" and ".join(missing)}'
          item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish():
  # Imported modules stay, so that collections may skip them.
  gc.collect()
  gc.freeze()
  gc.set_threshold(20_000)


@pytest.fixture(scope='session')
def sources():
  """Returns path -> text of a few modules of the standard library."""
  stdlib = pathlib.Path(sysconfig.get_paths()['stdlib'])
  names = ('argparse.py', 'ast.py', 'json/encoder.py', 'textwrap.py')
  return {name: (stdlib / name).read_text(encoding='utf-8') for name in names}


@pytest.fixture(scope='session')
def tokenizer(sources):
  """Returns a tokenizer of 512 pieces, trained on `sources`."""
  return tokenizers.train(sources.values(), 512)


@pytest.fixture(scope='session')
def corpus(tmp_path_factory):
  """Returns a folder of 40 small files, some on each side of the split."""
  root = tmp_path_factory.mktemp('corpus')
  rng = np.random.default_rng(0)
  words = ['alpha', 'beta', 'gamma', 'delta', 'if', 'else', '=', '+', '0', '\n']
  for i in range(40):
    (root / f'text{i}.txt').write_text(' '.join(rng.choice(words, 120)) + '\n')
  return root


@pytest.fixture(scope='session')
def data(tmp_path_factory):
  """Returns a folder with files in the formats of the benchmarks' authors."""
  folder = tmp_path_factory.mktemp('data')
  benchmarks.write(folder)
  return folder


@pytest.fixture(scope='session')
def server():
  """Returns a context that forks a process with most modules imported."""
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(
    [
      'specsamp.cli',
      'specsamp.experiments.compare',
      'specsamp.training.pretrain',
    ]
  )
  return context


@pytest.fixture(scope='module')
def standard_promotion():
  """Allows Adam of optax, which mixes integers and floats."""
  with jax.numpy_dtype_promotion('standard'):
    yield


@pytest.fixture(scope='module')
def optimized():
  """Compiles with all optimizations, as users do."""
  before = jax.config.read('jax_disable_most_optimizations')
  jax.config.update('jax_disable_most_optimizations', False)
  yield
  jax.config.update('jax_disable_most_optimizations', before)


@pytest.fixture(scope='module', autouse=True)
def _room_for_programs():
  """Deletes compiled programs before a process has too many of them.

  Each takes some memory maps, and Linux allows 65,530. The compiler dies of
  the next one.
  """
  yield
  maps = pathlib.Path('/proc/self/maps')
  if maps.exists() and maps.read_bytes().count(b'\n') > 40_000:
    jax.clear_caches()
    gc.collect()
