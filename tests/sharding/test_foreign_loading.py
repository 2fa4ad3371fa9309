"""Loading another library's folder on a mesh: each device reads its shards."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import foreign

import specsamp
from specsamp.checkpoints import model_dir
from specsamp.sharding import mesh as meshes

pytestmark = [pytest.mark.extended, pytest.mark.parity]

# Heads and hidden units divide into eight shards, the 53 rows of a vocabulary
# do not.
_EIGHT = {
  'llama': dict(num_attention_heads=8, num_key_value_heads=8, head_dim=4),
  'qwen3': dict(num_attention_heads=8, num_key_value_heads=4, head_dim=4),
  'opt': dict(hidden_size=32, word_embed_proj_dim=32, num_attention_heads=8),
  'gpt2': dict(n_embd=32, n_head=8),
}


@pytest.fixture(scope='module', params=_EIGHT)
def folder(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp('foreign')
  foreign.save(foreign.model(request.param, **_EIGHT[request.param]), folder)
  return folder


@pytest.mark.parametrize(
  'shape', [(1, 8), pytest.param((2, 4), marks=pytest.mark.slow)]
)
def test_shards_are_those_of_the_whole_model(folder, shape):
  alone = specsamp.load(folder)
  model = specsamp.load(folder, meshes.make(*shape))
  rows = -(-foreign.VOCAB // shape[1]) * shape[1]
  assert model.config.vocab_size == rows
  assert model.config.num_tokens == foreign.VOCAB
  assert model.params['embedding'].sharding.spec[0] == 'model'
  assert model.num_params > alone.num_params
  assert model.fingerprint == alone.fingerprint

  def compare(path, whole, sharded):
    # The vocabulary is padded with zeros.
    padding = [
      (0, b - a) for a, b in zip(whole.shape, sharded.shape, strict=True)
    ]
    whole = np.pad(np.asarray(whole), padding)
    np.testing.assert_array_equal(whole, sharded, err_msg=str(path))

  jax.tree_util.tree_map_with_path(compare, alone.params, model.params)


@pytest.mark.parametrize('folder', ['llama'], indirect=True)
def test_a_draft_with_a_smaller_vocabulary(folder, tmp_path):
  """It is padded to the target's rows on its devices."""
  mesh = meshes.make(1, 8)
  target = specsamp.load(folder, mesh)
  foreign.save(
    foreign.model('llama', 1, vocab_size=50, **_EIGHT['llama']), tmp_path, 50
  )
  draft = specsamp.load(tmp_path, mesh)
  assert draft.config.vocab_size == 56
  alone = specsamp.load(tmp_path).for_target(specsamp.load(folder))
  fitted = draft.for_target(target)
  assert fitted.mesh == mesh
  assert (fitted.config.vocab_size, fitted.config.num_tokens) == (56, 50)
  tokens = jnp.array([[1, 52, 3]])
  logits = lambda model: jax.jit(model.transformer.apply)(
    {'params': model.params}, tokens
  ).logits[..., :53]
  np.testing.assert_allclose(logits(fitted), logits(alone), atol=1e-5)


@pytest.mark.parametrize('folder', ['llama', 'gpt2'], indirect=True)
def test_orbax_and_back(folder, tmp_path):
  mesh = meshes.make(1, 8)
  model = specsamp.load(folder, mesh)
  model_dir.save(model, tmp_path / 'saved', 'orbax')
  for other in (mesh, meshes.make(2, 4), None):
    again = specsamp.load(tmp_path / 'saved', other)
    assert again.mesh == other and again.config == model.config
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)


_MEASURE = """
import json, sys
import jax
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
import specsamp
from specsamp.sharding import mesh as meshes
mesh = meshes.make(1, 8)
def kib(name):
  lines = open('/proc/self/status').read().splitlines()
  return int(next(l for l in lines if l.startswith(name)).split()[1])
specsamp.load(sys.argv[2], mesh)  # memory of imports and first uses
before = kib('VmRSS')
open('/proc/self/clear_refs', 'w').write('5')  # resets the peak
model = specsamp.load(sys.argv[1], mesh)
jax.block_until_ready(model.params)
size = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
print(json.dumps([size, 1024 * (kib('VmHWM') - before)]))
"""


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='reads /proc')
@pytest.mark.parametrize(
  'megabytes', [128, pytest.param(1024, marks=pytest.mark.slow)]
)
def test_memory(megabytes, tmp_path):
  """The peak on eight devices is below 1.3 times the weights."""
  width = 512 if megabytes < 1000 else 1024
  shape = dict(
    vocab_size=8192,
    hidden_size=width,
    intermediate_size=2 * width,
    num_attention_heads=8,
    num_key_value_heads=8,
  )
  layer_size = 10 * width * width
  layers = (megabytes * 2**18 - 2 * 8192 * width) // layer_size
  big, small = tmp_path / 'big', tmp_path / 'small'
  for folder, count in ((big, layers), (small, 1)):
    foreign.save_zeros('llama', folder, **shape, num_hidden_layers=count)
  out = subprocess.run(
    [sys.executable, '-c', _MEASURE, big, small],
    capture_output=True,
    text=True,
    check=True,
  )
  size, peak = json.loads(out.stdout.splitlines()[-1])
  print(f'{size / 2**20:.0f} MiB of weights, peak {peak / 2**20:.0f} MiB')
  assert 0.9 * megabytes < size / 2**20 < 1.1 * megabytes
  assert peak < 1.3 * size
