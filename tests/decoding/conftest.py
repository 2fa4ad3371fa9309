"""One pair of models for all tests here: what is compiled, they share."""

import jax
import pytest
import tiny

VOCAB = 11


@pytest.fixture(scope='session')
def pair():
  """(target, draft): greedy texts of some variety, a fifth of them guessed."""
  target = tiny.model(VOCAB, 28)
  return target, tiny.first_layer(target)


@pytest.fixture
def compilations():
  """A list that grows by one for each program that XLA compiles."""
  events = []

  def listen(event, seconds, **_):
    if event.endswith('backend_compile_duration'):
      events.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(listen)
  yield events
  jax.monitoring.unregister_event_duration_listener(listen)
