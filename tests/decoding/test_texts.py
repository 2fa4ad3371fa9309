"""Texts of completions: a prompt and its completion are one text."""

import io
import re
import sys

import pytest
from sentencepiece import sentencepiece_model_pb2
from testing import tiny

import specsamp
from specsamp import LanguageModel
from specsamp.data.prompts import Prompt
from specsamp.data.tokenizers import SentencePiece
from specsamp.drafting import model_drafter
from specsamp.experiments import marked_texts
from specsamp.sampling.transforms import SamplingParams

_PROMPTS = ['def f(x):', 'class A:\n', 'import', '']


@pytest.fixture(scope='module')
def model(tokenizer):
  """A random model, whose tokenizer adds a space before a text like LLaMA's."""
  proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.proto)
  proto.normalizer_spec.add_dummy_prefix = True
  made = tiny.model(tokenizer.vocab_size, seed=0)
  prefixed = SentencePiece(proto.SerializeToString())
  return LanguageModel(made.transformer, made.params, prefixed)


def _joined(tokenizer, prompt, tokens):
  """Returns the text of tokens without bytes, by joining pieces."""
  text = ''.join(tokenizer.pieces()[t] for t in tokens).replace('▁', ' ')
  text = re.sub(r'</?s>|<unk>', '', text)
  return text if prompt else text.removeprefix(' ')


def test_the_first_space_of_a_completion(model):
  prompts = _PROMPTS * 32
  got = specsamp.generate(
    model, prompts, max_new_tokens=2, sampling=SamplingParams(temperature=50.0)
  )
  spaces = 0
  for prompt, tokens, text in zip(prompts, got.tokens, got.texts, strict=True):
    if any('<0x' in model.tokenizer.pieces()[t] for t in tokens):
      continue
    assert text == _joined(model.tokenizer, prompt, tokens)
    spaces += bool(prompt) and text.startswith(' ')
  assert spaces > 1  # or nothing was tested


def test_a_streamed_text(model, monkeypatch):
  """Round by round it is the whole text, first space included."""
  spaces = 0
  for seed in range(48):
    monkeypatch.setattr(sys, 'stdout', io.StringIO())
    line = marked_texts.show(
      model,
      model_drafter(model, 2),
      Prompt('p', 'import'),
      model.tokenizer.encode('import'),
      verifier='token',
      sampling=SamplingParams(temperature=50.0),
      max_new_tokens=6,
      seed=seed,
    )
    shown = re.sub('[«»]', '', sys.stdout.getvalue())
    monkeypatch.undo()
    text = shown.split('\nimport', 1)[1].rsplit('\n--- ', 2)[0]
    assert text == line['text'].rstrip('\ufffd')
    spaces += text.startswith(' ')
  assert spaces
