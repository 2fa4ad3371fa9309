"""Configs of distillation, and the values that are refused."""

import dataclasses
import runpy

import pytest

from specsamp.drafting.trained import KINDS
from specsamp.errors import UserError
from specsamp.training.distill_config import DistillConfig
from specsamp.utils import schema

_CONFIG = DistillConfig(kind='eagle_parallel', ahead=3, batch_size=8, length=16)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(kind='eagle2'), "kind: got 'eagle2', expected one of medusa, .*"),
    (dict(noise=-0.1), 'noise: got -0.1, expected at least 0'),
    (dict(retention=1.5), 'retention: got 1.5, expected at most 1'),
    (dict(kind='medusa', num_layers=2), 'num_layers: medusa has none, got 2'),
    (
      dict(kind='dflash', draft_vocab=9),
      'draft_vocab: dflash drafts all .*, got 9',
    ),
    (
      dict(num_continuations=64, prompt_length=17),
      'prompt_length: got 17, more than the length 16 .*',
    ),
    (dict(temperatures=(0.0, -1.0)), '.*temperature: got -1.0.*'),
    (
      dict(temperatures=()),
      r'temperatures: got \(\), expected one .*',
    ),
    (dict(temperatures=(0, 0.0)), 'temperatures: got .*, each once'),
    (
      dict(temperatures=(0.0, 1.0), num_continuations=33),
      'num_continuations: got 33, expected a multiple of 64: .*'
      'continuation_batch=32 at each of 2 temperatures',
    ),
    (dict(loss='lk'), "loss: got 'lk', expected one of text, kl, tv, .*"),
  ],
)
def test_bad_configs(changes, message):
  values = dataclasses.asdict(_CONFIG) | changes
  with pytest.raises(UserError, match=f'^config: {message}$') as error:
    schema.read(DistillConfig, values)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('arg', [None, *KINDS, 'eagle_parallel_deep', 'smoke'])
def test_the_embedded_drafters_configs(arg):
  config = runpy.run_path('configs/distill_pycode.py')['get_config'](arg)
  assert config.is_locked
  made = schema.read(DistillConfig, config.to_dict())
  if arg in KINDS:
    assert made.kind == arg
  assert made.num_continuations % made.continuation_batch == 0
