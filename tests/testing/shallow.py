"""The embedded models without most layers, whose compilation takes long.

Their completions make no sense; all other properties are the same.
"""

import dataclasses

from specsamp import zoo
from specsamp.data.tokenizers import SentencePiece
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer


def pair() -> zoo.Pair:
  """Returns the embedded target's first layer, and its drafters."""
  whole = zoo.load('pycode')
  config = dataclasses.replace(whole.target.config, num_layers=1)
  params = {
    name: value
    for name, value in whole.target.params.items()
    if not name.startswith('layers_') or name == 'layers_0'
  }
  assert len(params) < len(whole.target.params)
  target = LanguageModel(Transformer(config), params, whole.target.tokenizer)
  drafters = {
    name: dataclasses.replace(drafter, target=target.fingerprint)
    for name, drafter in whole.drafters.items()
  }
  return zoo.Pair(target, whole.draft, drafters)


def chat_target() -> LanguageModel:
  """Returns the target of `zoo.load` with a chat template."""
  target = zoo.load('pycode').target
  files = dataclasses.replace(
    target.tokenizer.files,
    chat_template='{% for m in messages %}{{ m.content }}\n{% endfor %}',
  )
  tokenizer = SentencePiece(target.tokenizer.proto, files)
  return LanguageModel(target.transformer, target.params, tokenizer)


def zoo_load():
  """Returns a function that replaces `zoo.load` and knows only this pair."""
  shallow = pair()
  return lambda name, dtype='': {('pycode', ''): shallow}[name, dtype]
