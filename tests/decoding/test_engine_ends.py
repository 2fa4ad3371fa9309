"""Threads that share an engine, how requests end, and mistakes."""

import dataclasses
import threading

import jax.numpy as jnp
import pytest
import queued

from specsamp import Engine, SamplingParams, UserError
from specsamp.drafting import ngram_drafter


def _make(pair, slots, drafter=None, **args):
  return Engine(
    pair[0], slots=slots, drafter=drafter, max_length=queued.LENGTH, **args
  )


def test_one_thread_serves_the_requests_of_others(pair, chain):
  engine = _make(pair, 3, chain)
  done, requests = {}, queued.requests(30, 11)

  def serve():
    while not engine.is_closed:
      for chunk in engine.step(wait=10.0):
        if chunk.completion:
          done[chunk.id] = chunk.completion.tokens

  server = threading.Thread(target=serve)
  server.start()
  ids = {}

  def ask(part):
    for i in part:
      ids[i] = engine.submit(**requests[i])

  clients = [
    threading.Thread(target=ask, args=(range(i, 30, 3),)) for i in range(3)
  ]
  for client in clients:
    client.start()
  for client in clients:
    client.join()
  for _ in range(1000):
    if len(done) == 30:
      break
    threading.Event().wait(0.05)
  engine.close()
  server.join(10)
  assert not server.is_alive()
  for i, request in enumerate(requests):
    assert done[ids[i]] == queued.alone(pair[0], chain, 'token', request)


def test_cancelled_requests_end_at_once(pair, chain):
  engine = _make(pair, 1, chain, rounds=1)
  args = dict(max_new_tokens=40, stop_tokens=[])
  first, second = engine.submit([1], **args), engine.submit([2], n=2, **args)
  (chunk,) = engine.step()
  assert chunk.id == first and not chunk.completion and chunk.rounds == 1
  assert (engine.num_active, engine.num_waiting) == (1, 2)
  assert engine.cancel(first) and engine.cancel(second)
  ends = {(c.id, c.index): c.completion for c in engine.step()}
  assert [end.finish_reason for end in ends.values()] == ['cancelled'] * 3
  assert ends[first, 0].tokens == chunk.tokens
  assert ends[second, 0].tokens == [] and ends[second, 0].num_accepted == 0
  assert not engine.cancel(first) and not engine.step()
  # The slot can be used again.
  engine.submit([1], **args)
  assert len(next(engine.results()).tokens) == 40


def test_one_sample_is_cancelled_alone(pair, chain):
  """In a slot or in the queue; no memory is held for it."""
  engine = _make(pair, 2, chain, rounds=1)
  args = dict(max_new_tokens=20, stop_tokens=[], seed=3)
  expected = [c.tokens for c in engine.generate([[1]] * 4, **args)]
  id = engine.submit([1], n=4, **args)
  engine.step()
  request = engine._in_slots[0].request
  assert engine.cancel(id, 1) and engine.cancel(id, 2)
  ends = [c.completion for c in engine.step() if c.completion]
  reasons = {end.index: end.finish_reason for end in ends}
  assert reasons == {1: 'cancelled', 2: 'cancelled'}
  # The last sample has the free slot, and the prompt's state is dropped.
  assert engine.num_active == 2 and request.row is None
  rest = {c.index: c.tokens for c in engine.results()}
  assert rest == {0: expected[0], 3: expected[3]}
  assert not engine.cancel(id, 0)


def test_an_abandoned_iterator_loses_nothing(pair, chain):
  """A step ends several samples, of which the iterator takes one."""
  engine = _make(pair, 3, chain)
  ids = [engine.submit([i], max_new_tokens=1) for i in range(3)]
  ended = [next(engine.results()).id, next(engine.results()).id]
  ended += [chunk.id for chunk in engine.step()]
  assert ended == ids and not list(engine.stream())


def test_a_nan_ends_its_row_only(pair, chain):
  target, _ = pair
  params = dict(target.params)
  params['embedding'] = params['embedding'].at[7].set(jnp.nan)
  broken = dataclasses.replace(target, params=params)
  engine = _make((broken,), 2, chain)
  args = dict(sampling=SamplingParams(0.0), max_new_tokens=3, stop_tokens=[])
  ids = [engine.submit([token, token], **args) for token in (7, 3)]
  reasons = {c.id: c.finish_reason for c in engine.results()}
  assert [reasons[id] for id in ids] == ['nan', 'length']
  with pytest.raises(FloatingPointError, match=r'rows \[1\]'):
    engine.generate([[3], [7]], **args)


def test_a_closed_engine_takes_no_requests(pair):
  engine = _make(pair, 1)
  engine.submit([1], max_new_tokens=9)
  engine.close()
  assert not list(engine.results())
  with pytest.raises(UserError, match='closed'):
    engine.submit([1], max_new_tokens=9)


@pytest.mark.parametrize(
  ('engine', 'request_', 'words'),
  [
    (dict(slots=0), None, ['slots', '0']),
    (dict(rounds=1.5), None, ['rounds', '1.5']),
    (dict(max_length=65), None, ['max_length', '65', '64']),
    (dict(logprobs=12), None, ['logprobs', '12', '11']),
    (dict(prompt_logprobs=True), None, ['prompt_logprobs', 'logprobs']),
    (dict(drafter=ngram_drafter(3, reference=[[1], [2]])), None, ['reference']),
    ({}, dict(n=0), ['n:', '0']),
    ({}, dict(prompt=[]), ['prompt 0', 'no token']),
    ({}, dict(prompt=[1] * 20, max_new_tokens=30), ['50', '48']),
    ({}, dict(stop_tokens=range(9)), ['stop_tokens', '8']),
    ({}, dict(n=2, seed=2**31 - 1), ['seed', 'below 2**31']),
    (
      {},
      dict(n=2, sampling=SamplingParams(temperature=[0.0, 1.0])),
      ['temperature', '[2]'],
    ),
  ],
)
def test_errors_are_one_line(pair, engine, request_, words):
  args = dict(max_length=queued.LENGTH, verifier='naive') | engine
  with pytest.raises(UserError) as error:
    Engine(pair[0], **args).submit(
      **dict(prompt=[1], max_new_tokens=4) | request_
    )
  for word in words:
    assert word in str(error.value)
  assert '\n' not in str(error.value)
