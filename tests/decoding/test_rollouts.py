"""An engine behind the interface of a trainer's sampler."""

import jax
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp import SamplingParams, UserError
from specsamp.decoding.rollouts import EngineSampler
from specsamp.drafting import TokenTree, model_drafter
from specsamp.drafting.trained import trained_drafter

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


def test_logprobs_are_those_of_a_trainers_pass(pair, sampler):
  got = sampler(
    PROMPTS, 12, temperature=0.7, return_logprobs=True, seed=3, eos_tokens=[]
  )
  target, _ = pair
  for prompt, tokens, logprobs in zip(
    PROMPTS, got.tokens, got.logprobs, strict=True
  ):
    text = np.asarray([[*sampler.tokenize(prompt), *tokens]])
    out = target.transformer.apply({'params': target.params}, text)
    expected = jax.nn.log_softmax(out.logits[0] / np.float32(0.7), axis=-1)
    at = np.arange(len(prompt) - 1, text.shape[1] - 1)
    np.testing.assert_allclose(logprobs, expected[at, tokens], atol=1e-5)


def test_new_weights_compile_nothing(pair, compilations):
  other = tiny.model(11, 29)
  args = dict(cache_size=LENGTH, drafter=model_drafter(pair[1], 3))
  sampler = EngineSampler(pair[0], **args)
  before = _rollouts(sampler).text
  compilations.clear()
  sampler.transformer_state = other.params
  moved = _rollouts(sampler).text
  assert not compilations and moved != before
  assert moved == _rollouts(EngineSampler(other, **args)).text
  assert sampler.transformer_state['embedding'] is not None
  sampler.update_params(pair[0].params, drafter=tiny.draft(11, 5).params)
  assert not sampler.engine.is_stale


def test_a_stale_drafter_must_be_allowed(pair):
  target, _ = pair
  other = tiny.model(11, 29)
  tree = TokenTree.branching((2, 2))
  drafter = trained_drafter(tiny.trained(target, 'eagle'), target, tree)
  make = lambda **args: EngineSampler(
    target,
    cache_size=LENGTH,
    drafter=drafter,
    verifier='multi_candidate',
    **args,
  )
  with pytest.raises(UserError, match='stale=True'):
    make().transformer_state = other.params
  sampler = make(stale=True)
  sampler.transformer_state = other.params
  assert sampler.engine.is_stale
  # Greedy text is the new policy's, whatever drafts.
  alone = specsamp.generate(
    other, PROMPTS, sampling=SamplingParams(0.0), max_new_tokens=12
  )
  assert sampler(PROMPTS, 12).text == alone.texts


@pytest.mark.parametrize(
  ('args', 'message'),
  [
    (dict(return_logits=True), 'return_logits: got True'),
    (dict(beam_size=2), 'beam_size: got 2'),
    (dict(multi_sampling=0), 'n: got 0'),
  ],
)
def test_invalid_arguments(sampler, args, message):
  with pytest.raises(UserError, match=message):
    _rollouts(sampler, **args)
  with pytest.raises(UserError, match='filter_types'):
    sampler.update_params(sampler.transformer_state, (int,))
