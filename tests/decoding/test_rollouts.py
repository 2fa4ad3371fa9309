"""An engine behind the interface of a trainer's sampler."""

import numpy as np
import pytest

import specsamp
from specsamp import SamplingParams, UserError
from specsamp.decoding.rollouts import EngineSampler
from specsamp.drafting import model_drafter

LENGTH = 48
PROMPTS = ['abcde', 'h', 'cab']


def _rollouts(sampler, **args):
  return sampler(PROMPTS, 12, temperature=1.0, **args)


@pytest.fixture(scope='module')
def sampler(pair):
  return EngineSampler(
    pair[0],
    cache_size=LENGTH,
    slots=4,
    drafter=model_drafter(pair[1], 3),
    pad_id=9,
  )


def test_rollouts_are_those_of_generate(pair, sampler):
  """Two of each prompt, with seeds that continue from prompt to prompt."""
  got = _rollouts(sampler, seed=5, multi_sampling=2, top_p=0.9, top_k=-1)
  expected = specsamp.generate(
    pair[0],
    [prompt for prompt in PROMPTS for _ in range(2)],
    drafter=model_drafter(pair[1], 3),
    sampling=SamplingParams(1.0, top_p=0.9),
    max_new_tokens=12,
    seed=5,
  )
  assert got.text == expected.texts and got.logits == () and not got.logprobs
  assert [row.tolist() for row in got.tokens] == expected.tokens
  assert got.block_efficiency == pytest.approx(expected.block_efficiency)
  # The defaults are deterministic.
  first = sampler('ab', 9).text
  assert first == sampler(['ab'], 9, seed=0).text == sampler([[0, 1]], 9).text
  assert sampler.tokenize('cab') == [2, 0, 1]
  sampler.transformer_state = sampler.transformer_state
  got = sampler('ab', 9, return_logprobs=True)
  assert got.text == first
  (completion,) = got.completions
  np.testing.assert_array_equal(got.logprobs, [completion.logprobs.processed])


def test_arrays_are_padded(sampler):
  got = _rollouts(sampler, eos_tokens=[3], pad_output=True, seed=1)
  assert got.padded_prompt_tokens.tolist() == [
    [9, 9, 9, 0, 1, 2, 3, 4],
    [9, 9, 9, 9, 9, 9, 9, 7],
    [9, 9, 9, 9, 9, 2, 0, 1],
  ]
  assert got.prompt_lengths.tolist() == [5, 1, 3]
  ragged = _rollouts(sampler, eos_tokens=[3], seed=1).tokens
  assert got.tokens.shape == (3, 12) and min(map(len, ragged)) < 12
  for row, tokens in zip(got.tokens.tolist(), ragged, strict=True):
    assert row == tokens.tolist() + [9] * (12 - len(tokens))
    assert 3 not in tokens[:-1]
  echoed = _rollouts(
    sampler, eos_tokens=[3], pad_output=True, seed=1, echo=True,
    max_prompt_length=6,
  )  # fmt: skip
  assert echoed.padded_prompt_tokens.shape == (3, 6)
  assert echoed.tokens.shape == (3, 18)
  assert echoed.tokens[0, :5].tolist() == [0, 1, 2, 3, 4]
  texts = zip(echoed.text, PROMPTS, got.text, strict=True)
  assert all(whole == prompt + new for whole, prompt, new in texts)


def test_invalid_arguments(sampler):
  for name, value in (('return_logits', True), ('beam_size', 2)):
    with pytest.raises(UserError, match=f'{name}: got {value}'):
      _rollouts(sampler, **{name: value})
  with pytest.raises(UserError, match='filter_types'):
    sampler.update_params(sampler.transformer_state, (int,))
