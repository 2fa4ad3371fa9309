"""One pair of models for all tests here: what is compiled, they share."""

import pytest
import tiny

VOCAB = 11


@pytest.fixture(scope='session')
def pair():
  """(target, draft): greedy texts of some variety, a fifth of them guessed."""
  target = tiny.model(VOCAB, 28)
  return target, tiny.first_layer(target)
