"""Calls that must come back, on a thread that may be left behind if not."""

import threading

_SECONDS = 60  # far more than any takes


def call(function, *args):
  """Returns or raises what a call does; AssertionError if it goes on."""
  outcome = []

  def run():
    try:
      outcome.append((function(*args), None))
    except Exception as error:
      outcome.append((None, error))

  thread = threading.Thread(target=run, daemon=True)
  thread.start()
  thread.join(_SECONDS)
  assert outcome, f'still running after {_SECONDS} s'
  result, error = outcome[0]
  if error:
    raise error
  return result
