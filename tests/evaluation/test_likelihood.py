"""Likelihood of a text under the target's distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

from specsamp.evaluation import likelihood
from specsamp.sampling.transforms import SamplingParams, probabilities
from specsamp.sharding import mesh as meshes


def _laws(model, tokens, sampling):
  """Returns the distribution after each token, and the logits."""
  out = model.transformer.apply(
    {'params': model.params}, jnp.asarray([tokens], jnp.int32)
  )
  law = probabilities(out.logits[0], sampling.broadcast(len(tokens)))
  return np.asarray(law, np.float64), np.asarray(out.logits[0])


@pytest.mark.parametrize(
  'sampling',
  [SamplingParams(0.6), SamplingParams(1.0, top_p=0.7)],
)
def test_likelihood_of_random_text(sampling):
  model = tiny.model(12, seed=3)
  rng = np.random.default_rng(0)
  tokens = rng.integers(12, size=41).tolist()
  p, logits = _laws(model, tokens, sampling)
  expected, variance, outside, gap = 0.0, 0.0, 0, 0.0
  for t in range(4, 40):  # a prompt of 5 tokens, an output of 36
    x = tokens[t + 1]
    entropy = -sum(q * np.log(q) for q in p[t] if q)
    if p[t, x]:
      expected += -np.log(p[t, x]) - entropy
      variance += sum(q * np.log(q) ** 2 for q in p[t] if q) - entropy**2
    else:
      outside += 1
      gap = max(gap, logits[t].max() - logits[t, x])
  found = likelihood.text_likelihood(model, tokens[:5], tokens[5:], sampling)
  assert found.outside == outside
  assert found.excess_nll == pytest.approx(expected, abs=1e-3)
  assert found.variance == pytest.approx(variance, rel=1e-4)
  assert found.gap == pytest.approx(gap, abs=1e-4)
  assert (outside > 0) == (sampling.top_p < 1)


def test_greedy_text_is_certain():
  model = tiny.model(12, seed=3)
  tokens = [1, 2, 3]
  greedy = SamplingParams(0.0)
  _, logits = _laws(model, tokens, greedy)
  best = int(logits[-1].argmax())
  found = likelihood.text_likelihood(model, tokens, [best], greedy)
  assert found == (0.0, 0.0, 0, 0.0)
  found = likelihood.text_likelihood(model, tokens, [(best + 1) % 12], greedy)
  assert found.outside == 1 and found.gap > 0


def test_on_a_mesh():
  model = tiny.model(16, seed=1, num_kv_heads=2)
  tokens = np.random.default_rng(0).integers(16, size=30).tolist()
  law = SamplingParams(0.8, top_p=0.9)
  alone = likelihood.text_likelihood(model, tokens[:3], tokens[3:], law)
  sharded = model.on(meshes.make(2, 2, jax.devices()[:4]))
  found = likelihood.text_likelihood(sharded, tokens[:3], tokens[3:], law)
  assert found == pytest.approx(alone, abs=1e-3)
