"""A trainer's calls, answered by an engine."""

import inspect

import jax
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp import SamplingParams, UserError
from specsamp.decoding.rollouts import EngineSampler, Sampler
from specsamp.drafting import TokenTree, model_drafter
from specsamp.drafting.trained import trained_drafter

LENGTH = 48
PROMPTS = ['abcde', 'h', 'cab']


def _rollouts(sampler: Sampler, **args):
  """As a trainer, which knows the interface alone."""
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


def test_it_has_the_interface(sampler):
  assert isinstance(sampler, Sampler)
  for name in ('tokenize', 'update_params', '__call__'):
    wanted, own = (
      inspect.signature(getattr(of, name)).parameters
      for of in (Sampler, EngineSampler)
    )
    assert list(own)[: len(wanted)] == list(wanted)
    for key, parameter in wanted.items():
      assert own[key].default == parameter.default, (name, key)
      assert own[key].kind == parameter.kind
    rest = list(own.values())[len(wanted) :]
    assert all(p.default is not p.empty for p in rest)
  own = inspect.getattr_static(EngineSampler, 'transformer_state')
  assert own.fset is not None
  assert sampler.tokenize('cab') == [2, 0, 1]


def test_rollouts_are_the_texts_of_generate(pair, sampler):
  """Two of each prompt, whose seeds go on from one to the next."""
  got = _rollouts(sampler, seed=5, multi_sampling=2, top_p=0.9, top_k=-1)
  wanted = specsamp.generate(
    pair[0],
    [prompt for prompt in PROMPTS for _ in range(2)],
    drafter=model_drafter(pair[1], 3),
    sampling=SamplingParams(1.0, top_p=0.9),
    max_new_tokens=12,
    seed=5,
  )
  assert got.text == wanted.texts and got.logits == () and not got.logprobs
  assert [row.tolist() for row in got.tokens] == wanted.tokens
  assert got.block_efficiency == pytest.approx(wanted.block_efficiency)
  # And nothing that a trainer left out is drawn by chance.
  first = sampler('ab', 9).text
  assert first == sampler(['ab'], 9, seed=0).text == sampler([[0, 1]], 9).text


def test_arrays_are_filled(sampler):
  got = _rollouts(sampler, eos_tokens=[3], pad_output=True, seed=1)
  assert got.padded_prompt_tokens.tolist() == [
    [9, 9, 9, 0, 1, 2, 3, 4],
    [9, 9, 9, 9, 9, 9, 9, 7],
    [9, 9, 9, 9, 9, 2, 0, 1],
  ]
  assert got.prompt_lengths.tolist() == [5, 1, 3]
  free = _rollouts(sampler, eos_tokens=[3], seed=1).tokens
  assert got.tokens.shape == (3, 12) and min(map(len, free)) < 12
  for row, own in zip(got.tokens.tolist(), free, strict=True):
    assert row == own.tolist() + [9] * (12 - len(own))
    assert 3 not in own[:-1]
  echoed = _rollouts(
    sampler, eos_tokens=[3], pad_output=True, seed=1, echo=True,
    max_prompt_length=6,
  )  # fmt: skip
  assert echoed.padded_prompt_tokens.shape == (3, 6)
  assert echoed.tokens.shape == (3, 18)
  assert echoed.tokens[0, :5].tolist() == [0, 1, 2, 3, 4]
  texts = zip(echoed.text, PROMPTS, got.text, strict=True)
  assert all(whole == prompt + new for whole, prompt, new in texts)


def test_logprobs_are_the_trainers_own(pair, sampler):
  """Those of its pass over prompt and rollout, at the temperature."""
  got = sampler(
    PROMPTS, 12, temperature=0.7, return_logprobs=True, seed=3, eos_tokens=[]
  )
  target, _ = pair
  for prompt, tokens, logprobs in zip(
    PROMPTS, got.tokens, got.logprobs, strict=True
  ):
    text = np.asarray([[*sampler.tokenize(prompt), *tokens]])
    out = target.transformer.apply({'params': target.params}, text)
    own = jax.nn.log_softmax(out.logits[0] / np.float32(0.7), axis=-1)
    at = np.arange(len(prompt) - 1, text.shape[1] - 1)
    np.testing.assert_allclose(logprobs, own[at, tokens], atol=1e-5)


def test_weights_swap_and_compile_nothing(pair, compilations):
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


def test_a_stale_drafter_takes_a_word(pair):
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
  ('args', 'words'),
  [
    (dict(return_logits=True), 'return_logits: got True'),
    (dict(beam_size=2), 'beam_size: got 2'),
    (dict(multi_sampling=0), 'n: got 0'),
    (dict(top_p=0.0), 'top_p'),
    (dict(seed=-1), 'seed: got'),
  ],
)
def test_mistakes_are_told_in_a_line(sampler, args, words):
  with pytest.raises(UserError, match=words):
    _rollouts(sampler, **args)
  with pytest.raises(UserError, match='expected at most 48'):
    sampler(['ab'], 47)
  with pytest.raises(UserError, match='filter_types'):
    sampler.update_params(sampler.transformer_state, (int,))
