"""Prefill in chunks: the same states, texts and log-probabilities as whole."""

import dataclasses

import numpy as np
import pytest
from readers import make_drafter, make_target
from testing import tiny

import specsamp
from specsamp import SamplingParams
from specsamp.decoding.arguments import make_decoder
from specsamp.decoding.request import Request
from specsamp.drafting import (
  TokenTree,
  adaptive_drafter,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.trained import KINDS
from specsamp.errors import UserError

_RNG = np.random.default_rng(0)
# One ends with a chunk, one in the first chunk, one in the middle of the last.
_LENGTHS = (20, 3, 1, 27)
_PROMPTS = [_RNG.integers(8, size=n).tolist() for n in _LENGTHS]
_SAMPLING = SamplingParams(temperature=np.array([0.0, 8.0, 1.0, 8.0]))
_CHUNK = 5
_EXTRA = {
  'none': lambda target: None,
  'model': lambda target: model_drafter(target, 3),
  'tree': lambda target: model_drafter(
    target, TokenTree.branching((2, 2)), 'without_replacement'
  ),
  'ngram_or_model': lambda target: ngram_or_model(
    ngram_drafter(3), model_drafter(target, 3)
  ),
  'adaptive': lambda target: adaptive_drafter(
    make_drafter('eagle', 'chain'), (0, 1, 3), (1, 2, 3)
  ),
}


@pytest.mark.parametrize('kind', [*_EXTRA, *KINDS])
def test_chunks_equal_a_whole_prefill(kind):
  target = make_target(num_layers=max(1, tiny.layers(kind)))
  make = _EXTRA.get(kind, lambda t: make_drafter(kind, 'chain', t))
  drafter = make(target)

  def prefilled(chunk):
    request = Request.make(
      target, _PROMPTS, drafter, sampling=_SAMPLING, max_new_tokens=12,
      stop_tokens=[], prefill_chunk=chunk,
    )  # fmt: skip
    return request, request.prefill()

  whole_request, whole = prefilled(None)
  request, state = prefilled(_CHUNK)
  for row, length in enumerate(_LENGTHS):
    entries = lambda cache, row=row, length=length: [
      x[row, :, : length - 1] for x in (*cache.keys, *cache.values)
    ]
    pairs = zip(entries(state.cache), entries(whole.cache), strict=True)
    for one, other in pairs:
      np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
  for name in ('hidden', 'features'):
    values = [getattr(each.drafter, name, 0) for each in (state, whole)]
    np.testing.assert_allclose(*values, atol=1e-4)
  text = request.decode(state).tokens
  np.testing.assert_array_equal(text, whole_request.decode(whole).tokens)


def test_an_engine_reads_prompts_in_chunks():
  """Log-probabilities of prompts, too, and of rows that follow other rows."""
  target = make_target()

  def completions(chunk):
    engine = specsamp.Engine(
      target, slots=2, drafter=make_drafter('eagle', 'chain'), max_length=45,
      logprobs=2, prompt_logprobs=True, prefill_chunk=chunk,
    )  # fmt: skip
    return engine.generate(
      _PROMPTS, sampling=SamplingParams(temperature=4.0), max_new_tokens=12
    )

  for one, other in zip(completions(_CHUNK), completions(45), strict=True):
    assert one.tokens == other.tokens
    for name in ('logprobs', 'prompt_logprobs'):
      each = [getattr(completion, name).raw for completion in (one, other)]
      np.testing.assert_allclose(*each, atol=1e-5)


def test_memory_does_not_grow_with_the_prompt():
  target = tiny.model(8, 0, max_length=4096)

  def temporaries(length, chunk):
    request = Request.make(
      target, [[1] * length], max_new_tokens=1, max_length=4096,
      prefill_chunk=chunk,
    )  # fmt: skip
    lowered = request.programs.prefill.lower(request.inputs, request.prompts)
    return lowered.compile().memory_analysis().temp_size_in_bytes

  assert temporaries(4000, None) < 1.1 * temporaries(1000, None)
  assert temporaries(4000, None) < temporaries(4000, 4096) / 4


@pytest.mark.parametrize(
  ('heads', 'batch', 'capacity', 'size'),
  [
    (2, 1, 4096, 512),
    (2, 4, 4096, 128),
    (2, 4000, 4096, 64),
    (32, 1, 32_768, 256),
    (32, 2, 2**20, 64),
  ],
)
def test_default_size(heads, batch, capacity, size):
  decoder, _ = make_decoder(tiny.model(8, 0, num_heads=heads), None, None, 1)
  decoder = dataclasses.replace(decoder, prefill_tokens=512)
  assert decoder.chunk_size(batch, capacity) == size


@pytest.mark.parametrize('size', [0, -1, 2.0, True, 65])
def test_sizes_that_do_not_fit(size):
  target = make_target()
  calls = (
    lambda: specsamp.generate(
      target, [1], max_new_tokens=8, prefill_chunk=size
    ),
    lambda: specsamp.Engine(target, prefill_chunk=size),
  )
  for call in calls:
    with pytest.raises(UserError, match='^prefill_chunk: got .* 1 to 64$'):
      call()
