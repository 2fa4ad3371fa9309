"""Weights that change between an engine's requests."""

import dataclasses

import jax
import numpy as np
import pytest
from laws import (
  GROUPS,
  VOCAB,
  check_distribution,
  distributions_of,
  engine_counts,
)
from testing import tiny

import specsamp
from specsamp import Engine, SamplingParams, UserError
from specsamp.drafting import TokenTree, adaptive_drafter, model_drafter
from specsamp.drafting.trained import trained_drafter

PROMPTS = [[3, 1, 4, 1, 5], [7], [2, 7, 1], [8, 2], [5, 5]]
ARGS = dict(
  max_new_tokens=15,
  sampling=SamplingParams(temperature=[0.0, 1.0, 0.7, 1.0, 1.3]),
  seed=3,
  stop_tokens=[],
)
TREE = TokenTree.branching((2, 2))


def _generate(model, drafter, verifier='token'):
  return specsamp.generate(
    model, PROMPTS, drafter=drafter, verifier=verifier, **ARGS
  ).tokens


def _tokens(engine):
  return [each.tokens for each in engine.generate(PROMPTS, **ARGS)]


def test_other_weights_compile_nothing(compilations):
  """The engine then decodes like a model that was loaded with them."""
  target, other = (
    tiny.model(11, seed, positions='relative') for seed in (28, 29)
  )
  drafts = [tiny.first_layer(model) for model in (target, other)]
  engine = Engine(target, slots=2, drafter=model_drafter(drafts[0], 3))
  texts = [_generate(target, model_drafter(draft, 3)) for draft in drafts]
  texts.append(_generate(other, model_drafter(drafts[1], 3)))
  assert texts[0] != texts[1] != texts[2]
  assert _tokens(engine) == texts[0]
  compilations.clear()
  engine.update_params(drafter=drafts[1].params)
  assert _tokens(engine) == texts[1]
  # A trainer's weights may be on the host.
  engine.update_params(target=jax.tree.map(np.asarray, other.params))
  assert _tokens(engine) == texts[2]
  # Or on another device.
  elsewhere = jax.device_put(target.params, jax.devices()[1])
  engine.update_params(elsewhere, drafts[0].params)
  assert _tokens(engine) == texts[0]
  assert not compilations and not engine.is_stale


@pytest.mark.parametrize(
  'make',
  [
    tiny.first_layer,
    lambda target: target.quantized('int8'),
    lambda target: tiny.first_layer(target).quantized('w8a8'),
  ],
  ids=['first layer', 'int8', 'first layer in w8a8'],
)
def test_a_draft_of_the_target_follows_it(make):
  target, other = tiny.model(11, 28), tiny.model(11, 29)
  drafter = model_drafter(make(target), 3, of_target=True)
  engine = Engine(target, slots=2, drafter=drafter)
  engine.update_params(target=jax.tree.map(np.asarray, other.params))
  assert _tokens(engine) == _generate(other, model_drafter(make(other), 3))


def _eagle(target):
  return trained_drafter(tiny.trained(target, 'eagle'), target, TREE)


def test_a_stale_drafter_must_be_allowed(pair, compilations):
  target, _ = pair
  other = tiny.model(11, 29)
  drafter, verifier = _eagle(target), 'multi_candidate'
  engine = Engine(target, slots=2, drafter=drafter, verifier=verifier)
  before = _tokens(engine)
  compilations.clear()
  with pytest.raises(UserError, match=r'trained for the target .* stale=True'):
    engine.update_params(target=other.params)
  assert _tokens(engine) == before and not engine.is_stale
  engine.update_params(target=other.params, stale=True)
  assert engine.is_stale
  tokens = _tokens(engine)
  assert not compilations
  # The shared embedding and head are the new ones.
  moved = dataclasses.replace(
    _eagle(other), params=drafter.params, trained_for=other.fingerprint
  )
  assert tokens == _generate(other, moved, verifier) != before
  engine.update_params(target=target.params)
  assert not engine.is_stale and _tokens(engine) == before
  # A new drafter is taken to be made for the new target.
  engine.update_params(other.params, drafter.params)
  assert not engine.is_stale and _tokens(engine) == tokens


def test_acceptance_of_other_weights_is_forgotten():
  target, other = tiny.model(11, 28), tiny.model(11, 29)
  make = lambda draft: adaptive_drafter(
    model_drafter(draft, 2), (0, 2), (1.0, 1.5)
  )
  args = ARGS | dict(sampling=SamplingParams(temperature=0.0))
  rounds = lambda engine: [
    c.stats.rounds for c in engine.generate(PROMPTS, **args)
  ]
  engine = Engine(target, slots=1, drafter=make(other))
  useless = rounds(engine)
  engine.update_params(drafter=target.params)
  # Otherwise the earlier rejections would stop it from drafting for long.
  assert rounds(engine) == rounds(Engine(target, slots=1, drafter=make(target)))
  assert sum(useless) > 2 * sum(rounds(engine))


def test_errors_are_one_line(pair):
  target, draft = pair
  engine = Engine(target, slots=1, drafter=model_drafter(draft, 2))
  params = dict(target.params)
  embedding = params.pop('embedding')
  for args, words in (
    (dict(target=params), ['target', 'embedding']),
    (
      dict(target=params | {'embedding': embedding[:5]}),
      ['target', "['embedding']", '[5, 16]', '[11, 16]'],
    ),
    (
      dict(drafter=draft.params | {'embedding': embedding.astype('bfloat16')}),
      ['drafter', "['embedding']", 'bfloat16', 'float32'],
    ),
  ):
    with pytest.raises(UserError) as error:
      engine.update_params(**args)
    assert '\n' not in str(error.value)
    assert all(word in str(error.value) for word in words), error.value
  engine.submit([1], max_new_tokens=30)
  engine.step()
  with pytest.raises(UserError, match='1 requests in flight'):
    engine.update_params(target=target.params)
  alone = Engine(target, slots=1)
  with pytest.raises(UserError, match='NoDrafter takes no parameters'):
    alone.update_params(drafter=draft.params)


# The distribution of the output.


@pytest.mark.slow
@pytest.mark.usefixtures('optimized')
def test_a_stale_drafter_leaves_the_distribution():
  target, other = (tiny.model(VOCAB, seed, max_length=8) for seed in (0, 3))
  drafter = _eagle(target)
  engine = Engine(
    target, slots=200, drafter=drafter, verifier='multi_candidate', rounds=2
  )
  engine.update_params(target=other.params, stale=True)
  counts = engine_counts(engine)
  check_distribution(GROUPS, counts, distributions_of(other))
  with pytest.raises(AssertionError):
    check_distribution(GROUPS, counts, distributions_of(target))
