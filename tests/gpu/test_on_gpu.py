"""Decoding on a GPU; skipped without one.

JAX_PLATFORMS=cuda,cpu pytest -m gpu tests/gpu
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp.data import prompts
from specsamp.decoding.request import Request
from specsamp.drafting import TokenTree, model_drafter, trained_drafter

pytestmark = pytest.mark.gpu

_GREEDY = specsamp.SamplingParams(temperature=0.0)


@pytest.fixture(autouse=True)
def _on_gpu():
  if jax.default_backend() != 'gpu':
    pytest.skip('needs a GPU')
  # By default a GPU multiplies float32 in 19 bits.
  with jax.default_matmul_precision('float32'):
    yield


def _drafter(name, pair):
  match name:
    case 'chain':
      return model_drafter(pair.draft, 4), 'token'
    case 'tree':
      tree = TokenTree.branching((4, 2, 1))
      drafter = model_drafter(pair.draft, tree, 'without_replacement')
      return drafter, 'multi_candidate'
    case 'eagle':
      return trained_drafter(pair.drafters['eagle'], pair.target, 4), 'token'


@pytest.mark.parametrize('name', ['chain', 'tree', 'eagle'])
def test_greedy_text_is_that_of_the_target(name):
  """Each token is the target's argmax in a pass over the whole text.

  Passes of different lengths add in different orders, so only near ties may
  differ.
  """
  pair = specsamp.zoo.load('pycode')
  drafter, verifier = _drafter(name, pair)
  texts = prompts.held_out(pair.target.tokenizer, 4, max_tokens=64)
  ids = [pair.target.tokenizer.encode(text.text) for text in texts]
  out = specsamp.generate(
    pair.target,
    ids,
    drafter=drafter,
    verifier=verifier,
    sampling=_GREEDY,
    max_new_tokens=64,
    stop_tokens=(),
  )
  assert out.block_efficiency > 2  # as on a CPU
  for prompt, tokens in zip(ids, out.tokens, strict=True):
    whole = jnp.asarray([prompt + tokens], jnp.int32)
    logits = pair.target.transformer.apply(
      {'params': pair.target.params}, whole
    ).logits[0, len(prompt) - 1 : -1]
    chosen = jnp.take_along_axis(logits, whole[0, len(prompt) :, None], axis=1)
    assert float((logits.max(axis=1) - chosen[:, 0]).max()) < 1e-3


def test_sampled_tokens_are_those_of_a_cpu():
  """The random bits are the same. In one row of 16 rounding may decide a draw
  at the border of two tokens."""
  cpu = jax.devices('cpu')[0]

  def texts(device):
    target = tiny.model(11, seed=0)
    draft = tiny.first_layer(target)
    target, draft = (
      dataclasses.replace(model, params=jax.device_put(model.params, device))
      for model in (target, draft)
    )
    return specsamp.generate(
      target,
      [[i % 11] for i in range(16)],
      drafter=model_drafter(draft, 3),
      max_new_tokens=32,
      stop_tokens=(),
    ).tokens

  there, here = texts(jax.devices()[0]), texts(cpu)
  same = [a == b for a, b in zip(there, here, strict=True)]
  assert sum(same) >= 15, same
  assert len(set(map(tuple, there))) > 8  # they are draws


def test_rounds_update_the_state_in_place():
  """The loop's state is donated, so there is no second copy of a cache."""
  pair = specsamp.zoo.load('pycode')
  request = Request.make(
    pair.target,
    [[1, 2, 3]],
    model_drafter(pair.draft, 4),
    sampling=_GREEDY,
    max_new_tokens=32,
    stop_tokens=(),
  )
  state = request.prefill()
  before = [array.unsafe_buffer_pointer() for array in state.cache.keys]
  after = request.decode(state, rounds=2)
  assert all(array.is_deleted() for array in state.cache.keys)
  pointers = [array.unsafe_buffer_pointer() for array in after.cache.keys]
  assert pointers == before
  assert np.asarray(after.stats.rounds)[0] == 2
