"""Checkpoints of transformers: equal logits and completions, both ways."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from testing import foreign

import specsamp
from specsamp.checkpoints import weights
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.drafting import model_drafter
from specsamp.models import kv_cache
from specsamp.sharding import mesh as meshes

pytestmark = pytest.mark.parity

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [7], [2, 7, 1], [8, 2, 8, 1]]


@pytest.fixture(scope='module', params=foreign.FAMILIES)
def both(request, tmp_path_factory):
  """(transformers' model, specsamp's, folder) of a family."""
  theirs = foreign.model(request.param)
  folder = tmp_path_factory.mktemp('family')
  foreign.save(theirs, folder)
  return theirs, specsamp.load(folder), folder


def test_logits_of_ragged_prompts_and_cached_decoding(both):
  theirs, ours, _ = both
  rng = np.random.default_rng(0)
  lengths = np.array([12, 5, 1, 9], np.int32)
  tokens = rng.integers(0, foreign.VOCAB, (4, 12)).astype(np.int32)
  later = rng.integers(0, foreign.VOCAB, (4, 6)).astype(np.int32)
  apply = jax.jit(
    functools.partial(ours.transformer.apply, {'params': ours.params})
  )
  cache = kv_cache.empty(ours.config, 4, 32)
  whole = apply(jnp.asarray(tokens), cache=cache)
  cached, cache = [], whole.cache
  for start, stop in ((0, 1), (1, 2), (2, 6)):
    at = lengths[:, None] + np.arange(start, stop, dtype=np.int32)[None]
    out = apply(jnp.asarray(later[:, start:stop]), jnp.asarray(at), cache)
    cached.append(np.asarray(out.logits))
    cache = out.cache
  cached = np.concatenate(cached, axis=1)
  for row, length in enumerate(lengths):
    text = np.concatenate([tokens[row, :length], later[row]])
    expected = foreign.logits(theirs, text[None])[0]
    np.testing.assert_allclose(
      whole.logits[row, :length], expected[:length], atol=1e-4
    )
    np.testing.assert_allclose(cached[row], expected[length:], atol=1e-4)


@pytest.mark.extended
def test_logits_on_a_mesh(both):
  """On two shards of two rows each, of texts longer than the windows."""
  theirs, _, folder = both
  mesh = meshes.make(2, 2, jax.devices()[:4])
  ours = specsamp.load(folder, mesh=mesh)
  shape = (4, 12)
  tokens = np.random.default_rng(1).integers(0, foreign.VOCAB, shape, np.int32)

  @jax.jit
  def pass_over(params, tokens):
    cache = ours.transformer.init_cache(params, 4, 32)
    return ours.transformer.apply({'params': params}, tokens, cache=cache)

  with meshes.use(mesh):
    logits = pass_over(ours.params, tokens).logits
  assert len(logits.sharding.device_set) == 4
  np.testing.assert_allclose(
    logits[..., : foreign.VOCAB], foreign.logits(theirs, tokens), atol=1e-4
  )


# The first test compares all logits of every family.
@pytest.mark.parametrize(
  'both', ['llama', 'gpt2', 'gemma 3', 'qwen3 moe', 'mixtral'], indirect=True
)
@pytest.mark.parametrize('drafts', [False, True])
def test_greedy_texts(both, drafts):
  """Completions are longer than Gemma's window."""
  theirs, ours, _ = both
  emitted = specsamp.generate(
    ours,
    PROMPTS,
    drafter=model_drafter(ours, 3) if drafts else None,
    sampling=specsamp.SamplingParams(temperature=0.0),
    max_new_tokens=20,
    stop_tokens=[],
  )
  for prompt, tokens in zip(PROMPTS, emitted.tokens, strict=True):
    assert tokens == foreign.greedy(theirs, prompt, 20)


@pytest.mark.parametrize('prefix', ['language_model.model.', 'model.language_'])
def test_the_text_model_of_a_multimodal_one(tmp_path, prefix):
  """Tensors for images are not read; two versions name the others."""
  import transformers

  text = foreign.config('gemma 3')
  vision = dict(
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    image_size=8,
    patch_size=4,
  )
  config = transformers.Gemma3Config(
    text_config=text, vision_config=vision, mm_tokens_per_image=4
  )
  config.eos_token_id = None
  theirs = transformers.AutoModelForImageTextToText.from_config(config).eval()
  foreign.save(theirs, tmp_path)
  file = tmp_path / 'model.safetensors'
  tensors = safetensors.numpy.load_file(file)
  assert any(name.startswith('language_model.model.') for name in tensors)
  if not prefix.startswith('language_model'):
    tensors = {
      name.replace('language_model.model.', 'model.language_model.'): value
      for name, value in tensors.items()
    }
    safetensors.numpy.save_file(tensors, file, {'format': 'pt'})
  ours = specsamp.load(tmp_path)
  assert ours.config.tied_embeddings
  tokens = jnp.arange(12)[None]
  expected = foreign.logits(theirs, tokens)
  np.testing.assert_allclose(_logits(ours, tokens), expected, atol=1e-4)


def test_there_and_back(both, tmp_path):
  """Every tensor is equal, bit for bit, in transformers and read again.

  Some families are written as LLaMA, which computes the same function.
  """
  import torch
  import transformers

  theirs, ours, _ = both
  huggingface.save(ours, tmp_path / 'out')
  again, found = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / 'out', output_loading_info=True, attn_implementation='eager'
  )
  assert not any(found.values()), found
  tokens = np.arange(60)[None] % foreign.VOCAB
  np.testing.assert_allclose(
    foreign.logits(again, tokens), foreign.logits(theirs, tokens), atol=1e-4
  )
  if type(again) is type(theirs):
    expected, got = theirs.state_dict(), again.state_dict()
    assert expected.keys() == got.keys()
    for name, value in expected.items():
      if name.endswith('embed_positions.weight'):
        value, got[name] = value[2:], got[name][2:]  # without padding
      assert torch.equal(value, got[name]), name
  else:
    assert theirs.config.model_type in ('mistral', 'phi3')
    assert again.config.model_type == 'llama'
  back = specsamp.load(tmp_path / 'out')
  assert back.config == ours.config
  assert back.fingerprint == ours.fingerprint
  _same(back.params, ours.params)


@pytest.mark.parametrize('both', ['gemma 3'], indirect=True)
def test_norms_of_gemma_are_written_in_16_bits(both, tmp_path):
  """A file has w for a scale of 1 + w, which would need more bits."""
  _, _, folder = both
  ours = specsamp.load(folder, dtype='bfloat16')
  huggingface.save(ours, tmp_path / 'out')
  back = specsamp.load(tmp_path / 'out', dtype='bfloat16')
  _same(back.params, ours.params)


def _logits(model, tokens):
  return model.transformer.apply({'params': model.params}, tokens).logits


def _same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_one_file_or_several(tmp_path, monkeypatch):
  """Both libraries read and write both."""
  import transformers

  theirs, folder = foreign.model('llama'), tmp_path / 'several'
  foreign.save(theirs, folder, max_shard_size='20KB')
  assert len(list(folder.glob('model-*.safetensors'))) > 2
  ours = specsamp.load(folder)
  foreign.save(theirs, tmp_path / 'one')
  assert (tmp_path / 'one' / 'model.safetensors').exists()
  _same(specsamp.load(tmp_path / 'one').params, ours.params)
  monkeypatch.setattr(weights, '_FILE_BYTES', 20_000)
  out = tmp_path / 'out'
  huggingface.save(ours, out)
  index = json.loads((out / 'model.safetensors.index.json').read_text())
  sizes = [path.stat().st_size for path in out.glob('*.safetensors')]
  assert len(sizes) > 2 and max(sizes) < 25_000
  assert index['metadata']['total_size'] == 4 * theirs.num_parameters()
  again = transformers.AutoModelForCausalLM.from_pretrained(out)
  _same(specsamp.load(out).params, ours.params)
  np.testing.assert_allclose(
    foreign.logits(again, [[1, 2, 3]]),
    foreign.logits(theirs, [[1, 2, 3]]),
    atol=1e-5,
  )


@pytest.mark.parametrize('name', ['opt', 'gpt2', 'llama'])
def test_files_of_the_bare_model(name, tmp_path):
  """Older versions saved no prefix, and buffers with the weights."""
  import safetensors.torch
  import torch

  theirs = foreign.model(name)
  foreign.save(theirs, tmp_path)
  whole = specsamp.load(tmp_path)
  base = theirs.base_model_prefix + '.'
  tensors = {
    key.removeprefix(base): value.contiguous().clone()
    for key, value in theirs.state_dict().items()
  }
  if name == 'gpt2':
    tensors['h.0.attn.bias'] = torch.ones(1, 1, 64, 64)
    tensors['h.0.attn.masked_bias'] = torch.tensor(-1e4)
  if name == 'llama':
    tensors['layers.0.self_attn.rotary_emb.inv_freq'] = torch.ones(3)
  safetensors.torch.save_file(tensors, tmp_path / 'model.safetensors')
  _same(specsamp.load(tmp_path).params, whole.params)


def test_a_tied_config_with_an_lm_head(tmp_path):
  """Fine-tuning may leave one: it counts if it differs from the embedding."""
  import transformers

  foreign.save(foreign.model('llama'), tmp_path)
  file = tmp_path / 'config.json'
  values = json.loads(file.read_text()) | dict(tie_word_embeddings=True)
  file.write_text(json.dumps(values))
  ours = specsamp.load(tmp_path)
  assert not ours.config.tied_embeddings
  theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
  tokens = jnp.array([[1, 2, 3]])
  expected = foreign.logits(theirs, tokens)
  np.testing.assert_allclose(_logits(ours, tokens), expected, atol=1e-4)
  tensors = safetensors.numpy.load_file(tmp_path / 'model.safetensors')
  tensors['lm_head.weight'] = tensors['model.embed_tokens.weight'].copy()
  safetensors.numpy.save_file(
    tensors, tmp_path / 'model.safetensors', {'format': 'pt'}
  )
  assert specsamp.load(tmp_path).config.tied_embeddings


def test_rows_without_a_piece_are_never_emitted(tmp_path):
  """An embedding that was padded: 53 rows, 49 pieces."""
  theirs = foreign.model('llama')
  foreign.save(theirs, tmp_path, pieces=49)
  ours = specsamp.load(tmp_path)
  assert (ours.config.vocab_size, ours.config.num_tokens) == (53, 49)
  tokens = jnp.array([[1, 2, 3, 4]])
  got = _logits(ours, tokens)
  expected = foreign.logits(theirs, tokens)
  np.testing.assert_allclose(got[..., :49], expected[..., :49], atol=1e-4)
  emitted = specsamp.generate(
    ours, [[1]] * 64, max_new_tokens=20, stop_tokens=[]
  ).tokens
  assert max(map(max, emitted)) == 48
  huggingface.save(ours, tmp_path / 'out')
  assert specsamp.load(tmp_path / 'out').config.vocab_size == 49
