"""Wrong shapes are refused in one line that names the expected values."""

import numpy as np
import pytest

from specsamp.models import TransformerConfig, rotary
from specsamp.models.config import RopeScaling

_GOOD = dict(
  vocab_size=8,
  width=8,
  num_layers=1,
  num_heads=4,
  num_kv_heads=2,
  head_dim=2,
  mlp_width=8,
  max_length=8,
)
_SCALING = dict(kind='llama3', factor=8.0)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(norm='batch'), "norm: got 'batch', expected one of .*rms.*"),
    (dict(num_layers=0), 'num_layers must be an integer from 1 to 4096, got 0'),
    (dict(width=8.0), r'width must be an integer from 1 to .*, got 8\.0'),
    (dict(gated=1), 'gated must be true or false, got 1'),
    (dict(rope_theta=0.0), r'rope_theta must be a positive number, got 0\.0'),
    (dict(num_kv_heads=3), 'num_kv_heads must divide num_heads=4, got 3'),
    (dict(head_dim=3), 'rotary positions need an even head_dim, got 3'),
    (dict(padding=-1), 'padding must be an integer from 0 to .*, got -1'),
    (dict(padding=8), 'padding must be below vocab_size=8, got 8'),
    (
      dict(positions='learned', rope_scaling=RopeScaling('linear', 2.0)),
      "rope_scaling is for rotary positions, got 'learned'",
    ),
    (dict(rotary_fraction=0.5), 'rotary_fraction must be a whole .*, got 0.5'),
    (dict(query_growth=0.1), 'query_growth needs a rope_scaling.*'),
    (dict(windows=(4, -1)), r'windows must be integers .*, got \(4, -1\)'),
    (dict(num_experts=4), 'experts_per_token must be 1 to num_exp.*, got 0'),
    (
      dict(num_experts=4, experts_per_token=5, expert_width=8),
      'experts_per_token must be 1 to num_experts=4, .*, got 5',
    ),
    (dict(experts_per_token=1), 'experts_per_token must be .*=0, .*, got 1'),
    (
      dict(num_experts=4, experts_per_token=2),
      'expert_width is for experts: got 0 with num_experts=4',
    ),
    (
      dict(num_experts=4, experts_per_token=2, expert_width=8, biases='all'),
      "experts are gated MLPs without biases, .*'all'",
    ),
    (dict(dense_layers=(-1,)), r'dense_layers must be .*, got \(-1,\)'),
    (dict(score_cap=-1.0), 'score_cap must be a positive number, got -1.0'),
  ],
)
def test_refused(changes, message):
  with pytest.raises(ValueError, match=f'^{message}$'):
    TransformerConfig(**(_GOOD | changes))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(heads=1), "^model config: Transf.* unexpected .*'heads'"),
    (dict(rope_scaling={'base': 3}), "RopeScaling.* unexpected .*'base'"),
    (dict(rope_scaling={'factor': 3}), "RopeScaling.* missing .*'kind'"),
    (dict(rope_scaling=_SCALING | dict(factor=0.5)), 'factor must be at least'),
    (dict(rope_scaling=_SCALING | dict(low_frequency=4.0)), 'low_frequency'),
  ],
)
def test_from_dict_refuses(changes, message):
  with pytest.raises(ValueError, match=message):
    TransformerConfig.from_dict(_GOOD | changes)


@pytest.mark.parametrize(
  ('head_dim', 'theta', 'factor', 'original', 'rounded', 'kept'),
  [
    (128, 1e6, 4, 32_768, True, [1, 1, 0.9118, 0.6912, 0.25]),
    (64, 1.5e5, 32, 4096, False, [0.8014] + [0.03125] * 4),
    (64, 1e4, 16, 4096, True, [1, 0.2788, 0.0625, 0.0625, 0.0625]),
    (128, 1e6, 16, 16_384, True, [1, 1, 0.7243, 0.4485, 0.0625]),
  ],
)
def test_yarn(head_dim, theta, factor, original, rounded, kept):
  """Qwen, gpt-oss, a drafter of Kimi, Ministral 3: figures of transformers."""
  scaling = RopeScaling('yarn', factor, 1.0, 32.0, original, rounded)
  changes = dict(head_dim=head_dim, rope_theta=theta, rope_scaling=scaling)
  scaled = rotary.frequencies(TransformerConfig(**(_GOOD | changes)))
  ratios = scaled / theta ** (-np.arange(0, head_dim, 2) / head_dim)
  np.testing.assert_allclose(ratios[[10, 20, 25, 30, -1]], kept, atol=5e-5)
