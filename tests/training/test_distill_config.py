"""Configs of distillation, and what is refused of one."""

import dataclasses
import json
import runpy

import pytest

from specsamp.drafting.trained import KINDS
from specsamp.errors import UserError
from specsamp.training import distill_config
from specsamp.training.distill_config import DistillConfig

_CONFIG = DistillConfig(kind='eagle_parallel', ahead=3, batch_size=8, length=16)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(kind='eagle2'), "kind: got 'eagle2', expected one of medusa, .*"),
    (dict(kind=...), ".*'kind'"),
    (dict(colour='red'), '.*colour.*'),
    (dict(steps=0), 'steps: got 0, expected at least 1'),
    (dict(steps='many'), "steps: got 'many', expected an integer"),
    (
      dict(storage='int4'),
      "storage: got 'int4', expected one of float32, int8.*",
    ),
    (dict(noise=-0.1), 'noise: got -0.1, expected at least 0'),
    (dict(groups=-1), 'groups: got -1, expected at least 0'),
    (dict(groups=17), 'groups: got 17, more than the 16 positions .*'),
    (
      dict(groups=7, num_continuations=64, prompt_length=11),
      'groups: got 7, more than the 6 positions .*',
    ),
    (dict(retention=1.5), 'retention: got 1.5, expected at most 1'),
    (dict(retention=-0.5), 'retention: got -0.5, expected at least 0'),
    (dict(kind='medusa', num_layers=2), 'num_layers: medusa has none, got 2'),
    (dict(draft_vocab=9), 'draft_vocab: eagle_parallel drafts all .*, got 9'),
    (dict(num_layers=0), 'num_layers: got 0, expected at least 1'),
    (dict(ahead=17), 'ahead: got 17, more than the 16 tokens .*'),
    (
      dict(continuation_batch=0),
      'continuation_batch: got 0, expected at least 1',
    ),
    (dict(prompt_length=0), 'prompt_length: got 0, expected at least 1'),
    (dict(num_continuations=1), 'num_continuations: got 1, fewer than .*'),
    (
      dict(num_continuations=64, prompt_length=17),
      'prompt_length: got 17, more than the length 16 .*',
    ),
    (dict(temperatures=(0.0, -1.0)), '.*temperature: got -1.0.*'),
    (dict(temperatures=()), 'temperatures: got an empty list, .*'),
    (dict(temperatures=(0, 0.0)), 'temperatures: duplicate value .*'),
    (
      dict(temperatures=(0.0, 1.0), num_continuations=33),
      'num_continuations: got 33, expected a multiple of 64: .*'
      'continuation_batch=32 at each of 2 temperatures',
    ),
    (
      dict(num_continuations=16, batch_size=2),
      'num_continuations: got 16, expected .* of 32: .*continuation_batch=32.*',
    ),
    (dict(loss='lk'), "loss: got 'lk', expected one of text, kl, tv, .*"),
    (dict(eta=-1), 'eta: got -1, expected at least 0'),
    (
      dict(position_weights='length'),
      "position_weights: got 'length', expected one of decay, .*",
    ),
  ],
)
def test_bad_configs(changes, message):
  values = dataclasses.asdict(_CONFIG) | changes
  values = {k: v for k, v in values.items() if v is not ...}
  with pytest.raises(UserError, match=f'^config: {message}$') as error:
    distill_config.from_dict(values)
  assert '\n' not in str(error.value)


def test_configs_round_trip():
  config = dataclasses.replace(_CONFIG, temperatures=(0, 1))
  values = json.loads(json.dumps(dataclasses.asdict(config)))
  assert distill_config.from_dict(values) == config


@pytest.mark.parametrize('arg', [None, *KINDS, 'eagle_parallel_deep', 'smoke'])
def test_the_embedded_drafters_configs(arg):
  config = runpy.run_path('configs/distill_pycode.py')['get_config'](arg)
  assert config.is_locked
  made = distill_config.from_dict(config.to_dict())
  if arg in KINDS:
    assert made.kind == arg
  assert made.num_continuations % made.continuation_batch == 0
