"""Loading another library's folder on a mesh: each device reads its shards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import foreign

import specsamp
from specsamp.checkpoints import layouts, model_dir
from specsamp.sharding import mesh as meshes

pytestmark = [pytest.mark.extended, pytest.mark.parity]

# Heads and hidden units divide into eight shards, the 53 rows of a vocabulary
# do not.
_HEADS = dict(num_attention_heads=8, num_key_value_heads=8, head_dim=4)
_EIGHT = {
  'llama': _HEADS,
  'phi 3': dict(hidden_size=32, num_attention_heads=8, num_key_value_heads=8),
  'glm 4': _HEADS,
  'gemma 3': _HEADS,
  'opt': dict(hidden_size=32, word_embed_proj_dim=32, num_attention_heads=8),
  'gpt2': dict(n_embd=32, n_head=8),
}


@pytest.fixture(scope='module', params=_EIGHT)
def folder(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp('foreign')
  foreign.save(foreign.model(request.param, **_EIGHT[request.param]), folder)
  return folder


def test_shards_are_those_of_the_whole_model(folder, monkeypatch):
  alone = specsamp.load(folder)
  sizes, real = [], layouts._read_padded

  def read(*args):
    sizes.append(real(*args).size)
    return real(*args)

  monkeypatch.setattr(layouts, '_read_padded', read)
  model = specsamp.load(folder, meshes.make(1, 8))
  leaves = jax.tree.leaves(model.params)
  assert max(sizes) <= max(x.addressable_shards[0].data.size for x in leaves)
  assert model.config.vocab_size == 56
  assert model.config.num_tokens == foreign.VOCAB
  assert model.params['embedding'].sharding.spec[0] == 'model'
  assert model.num_params > alone.num_params
  assert model.fingerprint == alone.fingerprint

  def compare(whole, sharded):
    padded = np.zeros_like(sharded)  # as the vocabulary is
    padded[tuple(map(slice, whole.shape))] = whole
    np.testing.assert_array_equal(padded, sharded)

  jax.tree.map(compare, alone.params, model.params)


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
