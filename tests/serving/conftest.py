"""One server of tiny models for all tests that leave it as it was."""

import pytest
import running


@pytest.fixture(scope='package')
def models():
  return running.pair()


@pytest.fixture(scope='package')
def _running(models):
  with running.serving(*models) as found:
    yield found


@pytest.fixture
def served(_running):
  """It, with nothing under way before and after."""
  _running.wait_idle()
  yield _running
  _running.wait_idle()
  assert _running.worker.failure is None
