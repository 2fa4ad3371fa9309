"""The latency model against the times that Chen et al. 2302.01318 report."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from specsamp.drafting.draft import TokenTree
from specsamp.drafting.trained import make
from specsamp.models import param_shapes, presets
from specsamp.planning import latency, speculation, tpu, work
from specsamp.planning.topology import parse
from specsamp.planning.work import Collective, Work

_TARGET = presets.chinchilla_70b()
_DRAFT = presets.chinchilla_draft_4b()
_ALTERNATIVE = presets.chinchilla_7b()
_REPORTED_MS = [  # section 6
  (_TARGET, 'v4:2x2x4', 14.1),
  (_DRAFT, 'v4:2x2x4', 1.8),
  (_ALTERNATIVE, 'v4:2x2x1', 5.0),
]


@functools.cache
def _pass(config, shards, tokens):
  return work.of_pass(config, shards=shards, tokens=tokens, context=2048)


def _ms(config, name, tokens=1, constants=tpu.CONSTANTS):
  """Returns the predicted milliseconds of a pass on the slice of a name."""
  where = dataclasses.replace(parse(name), constants=constants)
  return latency.predict(_pass(config, where.num_chips, tokens), where).total


@pytest.mark.extended
def test_constants_are_fitted_to_the_reported_times():
  for model, name, reported in _REPORTED_MS:
    assert _ms(model, name) == pytest.approx(reported, rel=0.05)
  fitted = optimize.least_squares(
    lambda logs: [
      np.log(_ms(model, name, 1, tpu.Constants(*np.exp(logs))) / reported)
      for model, name, reported in _REPORTED_MS
    ],
    np.log([1e-6, 1e-3]),
  )
  np.testing.assert_allclose(np.exp(fitted.x), tpu.CONSTANTS, rtol=0.02)


def test_roofline_in_closed_form():
  where = dataclasses.replace(
    parse('v5e:4x4'),
    constants=tpu.Constants(hop_seconds=1e-6, step_seconds=1e-3),
  )
  # A TPU ignores the kernels.
  reduces = (Collective('all-reduce', 16_000_000, 2),)
  time = latency.predict(Work(819_000_000 - 9, 9, 197e9, reduces, 1000), where)
  # 12 hops an all-reduce; 30 MB over two links.
  collectives = 2 * (12e-3 + 1e3 * 30e6 / 100e9)
  assert time == pytest.approx([1, 1, collectives, 1, 2 + collectives])


def test_gpus_in_closed_form():
  reduces = (Collective('all-reduce', 4_500_000, 1),)
  model_pass = Work(3_350_000_000, 0, 989e9, reduces, 1000)
  one = latency.predict(model_pass, parse('h100'))
  # Kernels one after the other.
  assert one == pytest.approx([1, 1, 0, 1.3, 2.3])
  # A constant, 14 messages, and 7/4 of 4.5 MB over 450 GB/s.
  reduce_ms = 6.6e-3 + 14 * 0.6e-3 + 7 / 4 * 0.01
  eight = latency.predict(model_pass, parse('h100:8'))
  assert eight == pytest.approx([1, 1, reduce_ms, 1.3, 2.3 + reduce_ms])
  both = latency.predict_all([model_pass, model_pass], parse('h100'))
  assert both == pytest.approx([2 * ms for ms in one])


def test_a_pass_of_eagle_reads_its_layer_and_the_targets_head():
  config = presets.llama31_8b()
  params = param_shapes(make('eagle', config, 4))
  matrices = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
  scales = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 1]
  head = config.width * config.vocab_size
  eagle = work.eagle_pass(config, 3, 1024)
  expected = 2 * (head + sum(leaf.size for leaf in matrices))
  # The scale of the target's last norm is counted, but not read.
  expected += 4 * (sum(leaf.size for leaf in scales) + config.width)
  assert eagle.weights == expected
  assert eagle.flops == 3 * work.eagle_pass(config, 1, 1024).flops
  cache = 2 * config.num_kv_heads * config.head_dim * 1024
  assert eagle.caches == cache * jnp.dtype(config.dtype).itemsize


def test_a_round_drafts_level_by_level():
  draft = functools.partial(_pass, _DRAFT, 1)
  tree = TokenTree.branching((4, 2, 1))
  levels = [draft(1), draft(4), draft(8), _pass(_TARGET, 1, 21)]
  assert work.of_round(_TARGET, tree, draft, 2048) == levels
  alone = work.of_round(_TARGET, TokenTree.chain(0), None, 2048)
  assert alone == [_pass(_TARGET, 1, 1)]


@pytest.mark.parametrize(
  ('alpha', 'gamma', 'tau'),
  [(0.0, 4, 1.0), (0.5, 1, 1.5), (0.3, 10, (1 - 0.3**11) / 0.7), (1.0, 4, 5.0)],
)
def test_expected_tokens_and_their_inverse(alpha, gamma, tau):
  assert speculation.expected_tokens(alpha, gamma) == pytest.approx(tau)
  assert speculation.alpha_of(tau, gamma) == pytest.approx(alpha, abs=1e-9)
