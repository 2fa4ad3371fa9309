"""One server of tiny models, for all tests that do not change it."""

import pytest
import running


@pytest.fixture(scope='package')
def models():
  return running.pair()


@pytest.fixture(scope='package')
def _server(models):
  with running.serving(*models) as server:
    yield server


@pytest.fixture
def served(_server):
  """The server, without requests in flight before and after."""
  _server.wait_idle()
  yield _server
  _server.wait_idle()
  assert _server.worker.failure is None
