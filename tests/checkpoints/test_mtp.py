"""A module of multi-token prediction inside a model, from file to completion.

MiMo-7B is Qwen2 with such a module; `test_heads` has its mathematics.
"""

import functools
import json

import pytest
import safetensors.numpy
from heads_on_disk import random_tensors, refused
from testing import foreign

import specsamp
from specsamp.checkpoints import folders
from specsamp.checkpoints.huggingface import families
from specsamp.drafting import TokenTree
from specsamp.experiments import loading


def _save_mimo(folder):
  """Writes a Qwen2 with MiMo's names; returns transformers' Qwen2."""
  theirs = foreign.model('qwen2', tie_word_embeddings=False)
  foreign.save(theirs, folder)
  file = folder / 'model.safetensors'
  tensors = safetensors.numpy.load_file(file)
  layer = {
    name.removeprefix('model.layers.0.'): x.shape
    for name, x in tensors.items()
    if name.startswith('model.layers.0.')
  }
  norms = 'token_layernorm', 'hidden_layernorm', 'final_layernorm'
  layer |= {f'{norm}.weight': (24,) for norm in norms}
  layer['input_proj.weight'] = 24, 48
  module = random_tensors(
    {f'model.mtp_layers.0.{name}': shape for name, shape in layer.items()}
  )
  safetensors.numpy.save_file(tensors | module, file)
  values = json.loads((folder / 'config.json').read_text())
  values |= dict(
    architectures=['MiMoForCausalLM'],
    model_type='mimo',
    num_nextn_predict_layers=1,
  )
  (folder / 'config.json').write_text(json.dumps(values))
  return theirs


@pytest.mark.parity
def test_mimo_drafts_for_itself(tmp_path, monkeypatch):
  """The folder is the target and, by the name mtp, its drafter."""
  monkeypatch.setattr(loading, '_check_acceptance', lambda *_: None)
  theirs = _save_mimo(tmp_path)
  models = loading.load(str(tmp_path), '', None)
  prompts = [[3, 1, 4, 1, 5], [9, 2], [6]]
  complete = functools.partial(
    specsamp.generate,
    models.target,
    sampling=specsamp.SamplingParams(temperature=0.0),
    max_new_tokens=12,
    stop_tokens=[],
  )
  tree = TokenTree.branching((2, 2))
  for shape, law in ((3, 'iid'), (tree, 'deterministic')):
    drafter = models.drafter('mtp', shape, law)
    out = complete(prompts, drafter=drafter)
    for prompt, got in zip(prompts, out.tokens, strict=True):
      assert list(got) == foreign.greedy(theirs, prompt, 12)
      assert complete([prompt], drafter=drafter).tokens == [got]
  assert drafter.taps == (2,)


def test_a_model_without_a_module_is_named(tmp_path):
  values = {'architectures': ['LlamaForCausalLM']}
  (tmp_path / folders.CONFIG).write_text(json.dumps(values))
  without = loading.Models(None, None, {}, folder=str(tmp_path))
  refused('has no num_nextn_predict_layers', without.drafter, 'mtp', 2)
  embedded = loading.Models(None, None, {})
  refused('drafter mtp: it is inside a target', embedded.drafter, 'mtp', 2)


@pytest.mark.parametrize('count', ['1', 1.0, [1], True, -1])
def test_a_bad_number_of_modules_is_named(count):
  values = {families.MTP: count}
  refused(f'{families.MTP}: got', families.mtp_prefixes, values, 2)
