"""Calls that must return within a minute, far longer than any of them takes."""

from concurrent.futures import ThreadPoolExecutor


def call(function, *args):
  """Returns the result of a call or raises its error, or a TimeoutError."""
  return ThreadPoolExecutor(1).submit(function, *args).result(60)
