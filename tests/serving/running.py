"""A server of tiny models at a port of this machine, and clients of it."""

import asyncio
import contextlib
import dataclasses
import json
import threading
import time
from typing import Any, NamedTuple

import httpx
from testing import tiny

from specsamp.decoding.engine import Engine
from specsamp.drafting import model_drafter
from specsamp.serving import app, server
from specsamp.serving.requests import Limits
from specsamp.serving.worker import Worker

VOCAB, LENGTH, SLOTS, QUEUE, BODY = 11, 48, 3, 5, 20_000
CANCELLED = 'requests_total{outcome="cancelled"'
PATIENCE = 60  # seconds


class Chatty(tiny.Letters):
  """Letters with a chat template: the turns, one behind the other."""

  def encode(self, text, bos=True):
    return super().encode(text)

  def chat(self, messages, /, end='', **_):
    return ''.join(message['content'] for message in messages) + end


class Running(NamedTuple):
  """Running server, with a client of it."""

  url: str
  client: httpx.Client
  limits: Limits
  worker: Worker
  engine: Engine
  http: server.Server

  def post(self, body: Any, chat: bool = False) -> httpx.Response:
    path = 'v1/chat/completions' if chat else 'v1/completions'
    return self.client.post(path, json=body)

  def stream(self, body: dict[str, Any], chat: bool = False) -> list[dict]:
    response = self.post(body | {'stream': True}, chat)
    assert response.status_code == 200, response.text
    return events(response.text)

  def wait_idle(self) -> None:
    """Waits until no request is in flight."""
    wait_for(lambda: not self.worker.num_open and not self.engine.num_active)

  def metric(self, name: str) -> float:
    """Returns the sum of a metric over its labels."""
    lines = self.client.get('metrics').text.splitlines()
    values = [line for line in lines if line.startswith(f'specsamp_{name}')]
    return sum(float(line.split()[-1]) for line in values)


def events(text: str) -> list[dict]:
  *chunks, last, rest = text.split('\n\n')
  assert (last, rest) == ('data: [DONE]', ''), text[-200:]
  assert all(chunk.startswith('data: ') for chunk in chunks)
  return [json.loads(chunk.removeprefix('data: ')) for chunk in chunks]


def wait_for(condition) -> None:
  """Waits until a condition is true, with a timeout."""
  for _ in range(PATIENCE * 50):
    if condition():
      return
    time.sleep(0.02)
  raise TimeoutError


def pair(tokenizer=None):
  """Returns (target, drafter) of letters, with a chat template."""
  target = tiny.model(VOCAB, 28)
  target = dataclasses.replace(target, tokenizer=tokenizer or Chatty(VOCAB))
  return target, model_drafter(tiny.first_layer(target), 3)


@contextlib.contextmanager
def held(engine: Engine):
  """Yields permits, of which each burst needs one until the block ends."""
  permits, batch = threading.Semaphore(0), engine._batch
  burst, is_over = batch.burst, threading.Event()

  def wait(*args):
    if not is_over.is_set():
      assert permits.acquire(timeout=PATIENCE)
    return burst(*args)

  batch.burst = wait
  try:
    yield permits
  finally:
    is_over.set()
    permits.release()
    batch.burst = burst


def make_engine(target, drafter, rounds=1) -> Engine:
  return Engine(
    target,
    slots=SLOTS,
    drafter=drafter,
    max_length=LENGTH,
    rounds=rounds,
    logprobs=4,
  )


@contextlib.contextmanager
def serving(target, drafter, rounds=1, queue=QUEUE):
  """Yields a `Running` server."""
  engine = make_engine(target, drafter, rounds)
  engine.compile()
  limits = Limits('tiny', engine, LENGTH, SLOTS + queue, {'end': ''})
  worker = Worker(engine, queue)
  listener = server.listen('127.0.0.1', 0)
  names = server.allowed_names('127.0.0.1')
  http = server.Server(app.make(worker, limits, BODY, names), worker)
  thread = threading.Thread(
    target=lambda: asyncio.run(http.serve(sockets=[listener])), daemon=True
  )
  thread.start()
  url = server.address(listener)
  try:
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
      wait_for(lambda: http.started)
      yield Running(url, client, limits, worker, engine, http)
  finally:
    http.should_exit = True
    thread.join(PATIENCE)
    listener.close()
    assert not thread.is_alive()
