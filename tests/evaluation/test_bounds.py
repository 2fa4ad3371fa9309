"""The measured bound equals that of each round's distributions."""

import jax
import numpy as np
import pytest
from testing import tiny

from specsamp.drafting import TokenTree, model_drafter
from specsamp.evaluation import bounds
from specsamp.evaluation.bounds import best_acceptance
from specsamp.evaluation.methods import Method
from specsamp.sampling import transforms
from specsamp.sampling.transforms import SamplingParams

PROMPTS = [[1, 0, 2], [3], [2, 2, 1, 0]]
_probabilities = jax.jit(transforms.probabilities)


@pytest.fixture(scope='module')
def pair():
  return tiny.model(5, 0), tiny.draft(5, 1)


def _method(pair, verifier, law, temperature=0.8, coupled=False):
  tree = TokenTree.branching((3, 1))
  drafter = model_drafter(pair[1], tree, law, coupled)
  return Method('m', drafter, verifier, temperature, 0.9)


def _after(model, text):
  """Returns p after a text, from a separate pass."""
  variables = {'params': model.params}
  logits = model.transformer.apply(variables, np.asarray([text])).logits
  sampling = SamplingParams(0.8, top_p=0.9).broadcast(1)
  return np.asarray(_probabilities(logits[:, -1], sampling))[0]


@pytest.mark.parametrize('law', ['iid', 'without_replacement', 'top_plus_one'])
def test_bound_of_p_and_q_after_each_prompt(pair, law):
  verifier = 'top_plus_one' if law == 'top_plus_one' else 'multi_candidate'
  method = _method(pair, verifier, law)
  expected = [
    best_acceptance(p, q, law, 3 if law == 'iid' else min(3, (q > 0).sum()))
    for text in PROMPTS
    for p, q in [[_after(model, text) for model in pair]]
  ]
  found = bounds.measure(pair[0], method, PROMPTS, 1, seed=0)
  assert found.rounds == 3
  np.testing.assert_allclose(found.at_most, np.mean(expected), atol=1e-5)


def test_optimal_rules_reach_the_bound(pair):
  """Within 4 standard deviations of the number of rounds."""
  prompts = [*PROMPTS, *PROMPTS] * 4
  method = _method(pair, 'top_plus_one', 'top_plus_one')
  found = bounds.measure(pair[0], method, prompts, 40, seed=0)
  assert found.rounds > 300
  assert abs(found.accepted - found.at_most) < 2 / np.sqrt(found.rounds)
  fixed = _method(pair, 'naive', 'deterministic')
  found = bounds.measure(pair[0], fixed, prompts, 40, seed=0)
  assert abs(found.accepted - found.at_most) < 2 / np.sqrt(found.rounds)


def test_methods_without_a_bound(pair):
  assert bounds.is_bounded(_method(pair, 'traversal', 'iid'))
  for method in (
    _method(pair, 'naive', 'iid', temperature=0.0),
    _method(pair, 'typical_lossy', 'iid'),
    _method(pair, 'gumbel', 'deterministic', coupled=True),
    Method('autoregressive', None, 'token', 1.0, 1.0),
  ):
    assert not bounds.is_bounded(method)
