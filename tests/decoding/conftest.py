"""One pair of models for all tests here: what is compiled, they share."""

import pytest
import tiny

VOCAB = 11


@pytest.fixture(scope='session')
def pair():
  """(target, draft), unlike each other."""
  return tiny.model(VOCAB, 3), tiny.draft(VOCAB, 4)
