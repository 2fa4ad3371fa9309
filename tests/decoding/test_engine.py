"""A request through an engine has the output of a batch of one."""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import queued
from testing import elsewhere, tiny

import specsamp
from specsamp import Engine, SamplingParams
from specsamp.decoding.state import Prompts
from specsamp.drafting import (
  DynamicTree,
  TokenTree,
  adaptive_drafter,
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.trained import trained_drafter

TREE = TokenTree.branching((2, 2))


def _run_all(engine: Engine, requests, seed: int, cancelled: float):
  """Submits requests between steps, and cancels some.

  Returns:
    The completions, by index of the request.
  """
  rng = random.Random(seed)
  left, ids, streamed, done = list(enumerate(requests)), {}, {}, {}
  while left or engine.num_waiting or engine.num_active:
    for i, request in left[: rng.choice([0, 1, 4])]:
      ids[engine.submit(**request)] = i
      left.pop(0)
    in_flight = [id for id, i in ids.items() if i not in done]
    if in_flight and rng.random() < cancelled:
      assert engine.cancel(rng.choice(in_flight))
    for chunk in engine.step():
      tokens = streamed.setdefault(ids[chunk.id], [])
      tokens += chunk.tokens
      if chunk.completion:
        assert tokens == chunk.completion.tokens
        assert ids[chunk.id] not in done
        done[ids[chunk.id]] = chunk.completion
  assert sorted(done) == list(range(len(requests)))
  return done


def _check(requests, done, alone):
  """Checks tokens and reasons of completions; returns all reasons."""
  reasons = set()
  for i, request in enumerate(requests):
    completion, tokens = done[i], alone[i]
    reasons.add(completion.finish_reason)
    if completion.finish_reason == 'cancelled':
      assert completion.tokens == tokens[: len(completion.tokens)]
      continue
    assert completion.tokens == tokens, i
    is_stopped = tokens[-1] in request['stop_tokens']
    assert completion.finish_reason == ('stop' if is_stopped else 'length')
    if not is_stopped:
      assert len(tokens) == request['max_new_tokens']
  return reasons


def _alone(target, drafter, verifier, requests):
  return [queued.alone(target, drafter, verifier, r) for r in requests]


def test_rows_are_the_requests_alone(pair, chain):
  """Whatever other requests there are, some of them cancelled."""
  requests = queued.requests(30, 1)
  alone = _alone(pair[0], chain, 'token', requests)
  args = dict(slots=3, drafter=chain, max_length=queued.LENGTH)
  # Bursts of several rounds, and of one.
  for rounds in (4, 1):
    engine = Engine(pair[0], rounds=rounds, **args)
    done = _run_all(engine, requests, rounds, 0.3)
    reasons = _check(requests, done, alone)
    assert reasons == {'stop', 'length', 'cancelled'}


def _drafters(target, draft):
  """Returns (drafter, verifier) by name."""
  chain = model_drafter(draft, 3)
  trained = tiny.trained(target, 'eagle')
  eagle = trained_drafter(trained, target, TREE, 'top_plus_one')
  trained_races = trained_drafter(
    trained, target, TREE, 'deterministic', coupled=True
  )
  dynamic = model_drafter(draft, DynamicTree.of(9, 3, 3), 'deterministic')
  races = model_drafter(draft, 3, 'deterministic', coupled=True)
  return {
    'none': (None, 'token'),
    'tree': (model_drafter(draft, TREE, 'without_replacement'), 'traversal'),
    'eagle': (eagle, 'traversal'),
    'races': (trained_races, 'gumbel'),
    'lookahead': (lookahead_drafter(2, 2), 'naive'),
    'ngram or model': (ngram_or_model(ngram_drafter(3), chain), 'token'),
    'dynamic': (dynamic, 'naive'),
    'adaptive': (adaptive_drafter(races, (0, 3), (1.0, 1.5)), 'gumbel'),
  }


@pytest.mark.integration
@pytest.mark.parametrize(
  'name',
  [
    'eagle',
    'lookahead',
    pytest.param('races', marks=pytest.mark.extended),
    pytest.param('adaptive', marks=pytest.mark.extended),
    *(
      pytest.param(name, marks=pytest.mark.slow)
      for name in ('none', 'ngram or model', 'dynamic')
    ),
  ],
)
def test_any_drafter_and_verifier(pair, name):
  drafter, verifier = _drafters(*pair)[name]
  # One bucket, so that few programs are compiled.
  requests = queued.requests(12, 3, max_prompt=7)
  # With races the text is that of no draft.
  drafted = None if name == 'races' else drafter
  alone = _alone(pair[0], drafted, verifier, requests)
  engine = Engine(
    pair[0],
    slots=4,
    drafter=drafter,
    verifier=verifier,
    rounds=3,
    max_length=32,
  )
  _check(requests, _run_all(engine, requests, 4, 0.1), alone)


def test_generate_is_that_of_a_batch(pair, chain):
  """Tokens and counts, with more prompts than slots."""
  prompts = [request['prompt'][:20] for request in queued.requests(11, 5)]
  args = dict(
    max_new_tokens=[3 + 2 * i for i in range(11)],
    sampling=SamplingParams(temperature=np.linspace(0, 1.5, 11)),
    seed=9,
    stop_tokens=[4],
  )
  expected = specsamp.generate(pair[0], prompts, drafter=chain, **args)
  with Engine(
    pair[0], slots=3, drafter=chain, max_length=queued.LENGTH
  ) as engine:
    completions = engine.generate(prompts, **args)
    # Samples of a prompt are successive rows.
    args |= dict(max_new_tokens=5, sampling=None)
    rows = [row for row in prompts[:4] for _ in range(3)]
    samples = engine.generate(prompts[:4], n=3, **args)
    out = specsamp.generate(pair[0], rows, drafter=chain, **args)
    assert [sample.tokens for sample in samples] == out.tokens
  assert [c.tokens for c in completions] == expected.tokens
  assert [c.text for c in completions] == expected.texts
  assert [c.prompt for c in completions] == prompts
  for name in ('rounds', 'num_drafted_per_pos', 'num_accepted_per_pos'):
    counts = [getattr(c.stats, name) for c in completions]
    np.testing.assert_array_equal(counts, getattr(expected, name))
  last = completions[-1]
  assert last.num_accepted == expected.num_accepted_per_pos[-1].sum()
  assert last.block_efficiency == 1 + last.num_accepted / expected.rounds[-1]


def test_samples_of_a_prompt_share_its_prefill(pair, chain, monkeypatch):
  engine = Engine(pair[0], slots=3, drafter=chain, max_length=queued.LENGTH)
  prefills, real = [], engine._batch.prefill
  monkeypatch.setattr(
    engine._batch,
    'prefill',
    lambda prompts: prefills.append(prompts) or real(prompts),
  )
  # More samples than slots: the last ones wait.
  args = dict(max_new_tokens=12, stop_tokens=[])
  first = engine.submit([3, 1, 4], n=7, seed=20, **args)
  second = engine.submit([3, 1, 4], n=2, seed=[22, 5], **args)
  tokens = {(c.id, c.index): c.tokens for c in engine.results()}
  assert len(prefills) == 2 and len(tokens) == 9
  expected = specsamp.generate(
    pair[0], [[3, 1, 4]] * 8, drafter=chain, seed=[*range(20, 27), 5], **args
  ).tokens
  assert [tokens[first, i] for i in range(7)] == expected[:7]
  assert [tokens[second, i] for i in range(2)] == [expected[2], expected[7]]


# Log-probabilities.


def _forced(target, tokens):
  """Returns the logits of one pass over a text, float64 [T, V]."""
  out = jax.jit(target.transformer.apply)(
    {'params': target.params},
    np.asarray([tokens + [0] * (queued.LENGTH - len(tokens))]),
  )
  return np.asarray(out.logits[0, : len(tokens)], np.float64)


def _log_softmax(logits):
  logits = logits - logits.max(-1, keepdims=True)
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_logprobs_are_those_of_one_pass(pair):
  target, _ = pair
  drafter, verifier = _drafters(*pair)['tree']
  engine = Engine(
    target,
    slots=3,
    drafter=drafter,
    verifier=verifier,
    max_length=queued.LENGTH,
    logprobs=3,
    prompt_logprobs=True,
  )
  requests = {engine.submit(**r): r for r in queued.requests(8, 6)}
  chunks, accepted = {}, 0
  for chunk in engine.stream():
    chunks.setdefault(chunk.id, []).append(chunk)
  close = functools.partial(np.testing.assert_allclose, atol=1e-5)
  for id, request in requests.items():
    completion = chunks[id][-1].completion
    prompt, tokens = completion.prompt, completion.tokens
    logprobs, of_prompt = completion.logprobs, completion.prompt_logprobs
    accepted += completion.num_accepted
    logits = _forced(target, prompt + tokens)
    raw = _log_softmax(logits)
    best = np.argsort(-raw, axis=-1, kind='stable')[:, :3]
    start = len(prompt)
    at = np.arange(start - 1, start - 1 + len(tokens))
    close(logprobs.raw, raw[at, tokens])
    p = specsamp.sampling.transforms.probabilities(
      jnp.asarray(logits[None, at], jnp.float32), request['sampling']
    )
    p = np.asarray(p)[0, np.arange(len(at)), tokens]
    close(logprobs.processed, np.log(p))
    np.testing.assert_array_equal(logprobs.top_tokens, best[at])
    close(logprobs.top_raw, np.take_along_axis(raw[at], best[at], 1))
    at = np.arange(start - 1)
    assert np.isnan(of_prompt.raw[0]) and len(of_prompt.raw) == start
    close(of_prompt.raw[1:], raw[at, prompt[1:]])
    np.testing.assert_array_equal(of_prompt.top_tokens[1:], best[at])
    streamed = [chunk.logprobs.raw for chunk in chunks[id]]
    np.testing.assert_array_equal(np.concatenate(streamed), logprobs.raw)
  assert accepted


def test_nothing_compiles_once_it_is_warm(pair, chain, compilations):
  engine = Engine(pair[0], slots=6, drafter=chain, max_length=queued.LENGTH)
  engine.compile()  # no other test has 6 slots
  assert compilations
  compilations.clear()
  for seed in (8, 9):
    _run_all(engine, queued.requests(40, seed), seed, 0.2)
  engine.submit([1, 2], n=5, max_new_tokens=9)
  assert len(list(engine.results())) == 5
  assert not compilations
  # Another engine of this kind compiles nothing either.
  other = Engine(pair[0], slots=6, drafter=chain, max_length=queued.LENGTH)
  other.submit([1], max_new_tokens=9)
  list(other.results())
  assert not compilations


@pytest.mark.integration
@pytest.mark.usefixtures('optimized')
def test_no_program_between_prompts_copies_a_cache():
  """The caches are far larger than everything else."""
  shape = dict(max_length=512, head_dim=32, num_kv_heads=2)
  target = tiny.model(11, 0, num_layers=2, **shape)
  draft = tiny.model(11, 1, num_layers=1, **shape)
  law = 'without_replacement'
  drafter = model_drafter(draft, TREE, law)
  engine = Engine(target, slots=4, drafter=drafter, verifier='multi_candidate')
  engine.submit([1, 2, 3], max_new_tokens=400)
  engine.step()
  batch = engine._batch
  state, inputs = batch._state, batch._inputs
  one = np.ones((1,), np.int32)
  prompts = Prompts(np.zeros((1, 32), np.int32), 2 * one, 9 * one, one)
  row = batch.prefill(batch.one_prompt(prompts, 0))
  zero = np.int32(0)
  insert = batch._programs.insert.lower(state, row, zero, zero, zero)
  insert = insert.compile()
  idle = np.zeros(batch.slots, bool)
  burst = batch._programs.burst.lower(inputs, state, zero, zero, idle).compile()
  resume = batch._programs.resume.lower(inputs, row, prompts, one, 16)
  resume = resume.compile()
  caches = elsewhere.caches(state)
  assert len(caches) == 2 * (2 + 1)
  for program, consumed in ((insert, state), (burst, state), (resume, row)):
    arrays = elsewhere.caches(consumed)
    shapes = {array.shape for array in arrays}
    assert not elsewhere.copies(program.as_text(), shapes)
    memory = program.memory_analysis()
    assert memory.alias_size_in_bytes >= sum(leaf.nbytes for leaf in arrays)
    assert memory.temp_size_in_bytes < caches[0].nbytes
  before = [x.unsafe_buffer_pointer() for x in caches]
  sampling = jax.tree.map(lambda x: x[0], SamplingParams().broadcast(1))
  batch.insert(row, 1, 5, sampling, inputs.stop_tokens[0])
  after = [x.unsafe_buffer_pointer() for x in elsewhere.caches(batch._state)]
  assert before == after
