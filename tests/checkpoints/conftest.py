"""Fixtures that the tests of this folder share."""

import dataclasses

import numpy as np
import pytest
from heads_on_disk import VOCAB
from testing import tiny


@pytest.fixture(scope='session')
def target():
  """Seven layers, enough for EAGLE-3's taps; logits near 0."""
  model = tiny.model(VOCAB, 3, num_layers=7)
  head = np.float32(0.25) * model.params['head']
  return dataclasses.replace(model, params=model.params | {'head': head})
