"""Threads that share an engine, how requests end, and mistakes."""

import dataclasses
import threading

import jax.numpy as jnp
import pytest
import queued

from specsamp import Engine, SamplingParams, UserError
from specsamp.decoding.completions import Sample
from specsamp.drafting import (
  ngram_drafter,
)


def test_a_thread_of_its_own_serves_many(pair, chain):
  engine = Engine(pair[0], slots=3, drafter=chain, max_length=queued.LENGTH)
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
  engine = Engine(
    pair[0], slots=1, drafter=chain, rounds=1, max_length=queued.LENGTH
  )
  args = dict(max_new_tokens=40, stop_tokens=[])
  first, second = engine.submit([1], **args), engine.submit([2], n=2, **args)
  (chunk,) = engine.step()
  assert chunk.id == first and not chunk.completion
  assert (engine.num_active, engine.num_waiting) == (1, 2)
  assert engine.cancel(first) and engine.cancel(second)
  ends = {(c.id, c.index): c.completion for c in engine.step()}
  assert [end.finish_reason for end in ends.values()] == ['cancelled'] * 3
  assert ends[first, 0].tokens == chunk.tokens
  assert ends[second, 0].tokens == [] and ends[second, 0].num_accepted == 0
  assert not engine.cancel(first) and not engine.step()
  # The slot is of use again.
  engine.submit([1], **args)
  assert len(next(engine.results()).tokens) == 40


def test_one_sample_is_cancelled_alone(pair, chain):
  """In a slot or in the queue; nothing is held for it."""
  engine = Engine(
    pair[0], slots=2, drafter=chain, rounds=1, max_length=queued.LENGTH
  )
  args = dict(max_new_tokens=20, stop_tokens=[], seed=3)
  wanted = [each.tokens for each in engine.generate([[1]] * 4, **args)]
  id = engine.submit([1], n=4, **args)
  engine.step()
  job = engine._in_slots[0].job
  assert engine.cancel(id, 1) and engine.cancel(id, 2)
  ends = [c.completion for c in engine.step() if c.completion]
  assert {end.index: end.finish_reason for end in ends} == {
    1: 'cancelled',
    2: 'cancelled',
  }
  # The last one has the slot that is free, and the prompt's state is let go.
  assert engine.num_active == 2 and job.row is None
  rest = {each.index: each for each in engine.results()}
  assert {i: each.tokens for i, each in rest.items()} == {
    0: wanted[0],
    3: wanted[3],
  }
  assert not engine.cancel(id, 0)


def test_a_turn_does_not_look_through_the_queue(pair, chain, monkeypatch):
  """It may hold a hundred thousand; of which one that is cancelled is found."""
  looked, real = [], Sample.is_cancelled.fget
  monkeypatch.setattr(
    Sample,
    'is_cancelled',
    property(lambda sample: looked.append(sample) or real(sample)),
  )
  engine = Engine(
    pair[0], slots=2, drafter=chain, rounds=1, max_length=queued.LENGTH
  )
  id = engine.submit([1], n=500, max_new_tokens=20, stop_tokens=[])
  for _ in range(3):
    engine.step()
  assert len(looked) <= 3 * 2
  engine.cancel(id, 400)
  (gone,) = [chunk for chunk in engine.step() if chunk.index == 400]
  assert gone.completion.finish_reason == 'cancelled'
  looked.clear()
  engine.step()
  assert len(looked) <= 2
  engine.close()


def test_an_iterator_that_is_left_loses_nothing(pair, chain):
  """A turn ends several texts; whoever takes one of them finds the others."""
  engine = Engine(pair[0], slots=3, drafter=chain, max_length=queued.LENGTH)
  ids = [engine.submit([i], max_new_tokens=1) for i in range(3)]
  found = [next(engine.results()).id, next(engine.results()).id]
  found += [chunk.id for chunk in engine.step()]
  assert found == ids and not list(engine.stream())


def test_nothing_is_computed_of_what_is_cancelled(pair, chain):
  engine = Engine(
    pair[0], slots=3, drafter=chain, rounds=1, max_length=queued.LENGTH
  )
  args = dict(max_new_tokens=40, stop_tokens=[])
  gone = engine.submit([1], **args)
  engine.submit([2], **args)
  engine.step()
  engine.cancel(gone)
  engine.step()
  ended = engine._seen.length[0]
  engine.step()
  assert engine._seen.done.tolist() == [True, False, True]
  assert engine._seen.length[0] == ended
  assert sum(1 for _ in engine.results()) == 1


def test_a_nan_ends_its_own_row_alone(pair, chain):
  target, _ = pair
  params = dict(target.params)
  params['embedding'] = params['embedding'].at[7].set(jnp.nan)
  broken = dataclasses.replace(target, params=params)
  engine = Engine(broken, slots=2, drafter=chain, max_length=queued.LENGTH)
  args = dict(sampling=SamplingParams(0.0), max_new_tokens=3, stop_tokens=[])
  ids = [engine.submit([token, token], **args) for token in (7, 3)]
  got = {each.id: each.finish_reason for each in engine.results()}
  assert [got[id] for id in ids] == ['nan', 'length']
  with pytest.raises(FloatingPointError, match=r'rows \[1\]'):
    engine.generate([[3], [7]], **args)


def test_a_closed_engine_takes_nothing(pair):
  engine = Engine(pair[0], slots=1, max_length=queued.LENGTH)
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
def test_mistakes_are_told_in_a_line(pair, engine, request_, words):
  args = dict(max_length=queued.LENGTH, verifier='naive') | engine
  with pytest.raises(UserError) as error:
    made = Engine(pair[0], **args)
    made.submit(**dict(prompt=[1], max_new_tokens=4) | request_)
  for word in words:
    assert word in str(error.value)
  assert '\n' not in str(error.value)
