"""One pair of models for all tests here, which share compiled programs."""

import pytest
from testing import tiny

from specsamp.drafting import model_drafter
from specsamp.utils import compilation_cache

VOCAB = 11


@pytest.fixture(scope='session')
def pair():
  """(target, draft): varied greedy texts; the draft guesses a fifth."""
  target = tiny.model(VOCAB, 28)
  return target, tiny.first_layer(target)


@pytest.fixture(scope='session')
def chain(pair):
  """A drafter of three tokens."""
  return model_drafter(pair[1], 3)


@pytest.fixture
def compilations():
  """A list that grows by one for each program that XLA compiles."""
  with compilation_cache.compilations() as seconds:
    yield seconds
