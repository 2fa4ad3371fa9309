"""What goes through an engine is what comes out of a batch of one."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import queued
from testing import elsewhere, tiny

import specsamp
from specsamp import Engine, SamplingParams
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


def _arriving(engine: Engine, requests, seed: int, cancelled: float):
  """Submits now and then, and cancels some: completions by request's number."""
  rng = random.Random(seed)
  left, ids, streamed, done = list(enumerate(requests)), {}, {}, {}
  while left or engine.num_waiting or engine.num_active:
    for i, request in left[: rng.choice([0, 1, 4])]:
      ids[engine.submit(**request)] = i
      left.pop(0)
    under_way = [id for id, i in ids.items() if i not in done]
    if under_way and rng.random() < cancelled:
      assert engine.cancel(rng.choice(under_way))
    for chunk in engine.step():
      own = streamed.setdefault(ids[chunk.id], [])
      own += chunk.tokens
      if chunk.completion:
        assert own == chunk.completion.tokens
        assert ids[chunk.id] not in done
        done[ids[chunk.id]] = chunk.completion
  assert sorted(done) == list(range(len(requests)))
  return done


def _check(requests, done, alone):
  """Tokens, and why they end."""
  reasons = set()
  for i, request in enumerate(requests):
    got, tokens = done[i], alone[i]
    reasons.add(got.finish_reason)
    if got.finish_reason == 'cancelled':
      assert got.tokens == tokens[: len(got.tokens)]
      continue
    assert got.tokens == tokens, i
    is_stopped = tokens[-1] in request['stop_tokens']
    assert got.finish_reason == ('stop' if is_stopped else 'length')
    if not is_stopped:
      assert len(tokens) == request['max_new_tokens']
  return reasons


def test_rows_are_the_requests_alone(pair, chain):
  """Of whatever else there is, of all kinds, some of them cancelled."""
  requests = queued.requests(40, 1)
  alone = [
    queued.alone(pair[0], chain, 'token', request) for request in requests
  ]
  # Bursts of several rounds, and of one.
  for slots, rounds in ((3, 4), (5, 1)):
    engine = Engine(
      pair[0],
      slots=slots,
      drafter=chain,
      rounds=rounds,
      max_length=queued.LENGTH,
    )
    done = _arriving(engine, requests, slots, 0.3)
    reasons = _check(requests, done, alone)
    assert reasons == {'stop', 'length', 'cancelled'}


@pytest.mark.slow
def test_rows_are_the_requests_alone_in_full(pair, chain):
  requests = queued.requests(200, 2)
  alone = [
    queued.alone(pair[0], chain, 'block', request) for request in requests
  ]
  engine = Engine(
    pair[0], slots=8, drafter=chain, verifier='block', max_length=queued.LENGTH
  )
  for seed in range(3):
    done = _arriving(engine, requests, seed, 0.2)
    assert _check(requests, done, alone) == {'stop', 'length', 'cancelled'}


def _drafters(target, draft):
  """(drafter, verifier) by name."""
  chain = model_drafter(draft, 3)
  eagle = trained_drafter(tiny.trained(target, 'eagle'), target, TREE)
  dynamic = model_drafter(draft, DynamicTree.of(9, 3, 3), 'deterministic')
  races = model_drafter(draft, 3, 'deterministic', coupled=True)
  return {
    'none': (None, 'token'),
    'tree': (model_drafter(draft, TREE, 'without_replacement'), 'traversal'),
    'eagle': (eagle, 'multi_candidate'),
    'ngram': (ngram_drafter(3), 'naive'),
    'lookahead': (lookahead_drafter(2, 2), 'naive'),
    'ngram or model': (ngram_or_model(ngram_drafter(3), chain), 'token'),
    'dynamic': (dynamic, 'naive'),
    'coupled': (races, 'gumbel'),
    'adaptive': (
      adaptive_drafter(races, (0, 3), (1.0, 1.5)),
      'gumbel',
    ),
  }


@pytest.mark.integration
@pytest.mark.parametrize(
  'name',
  [
    'none',
    'eagle',
    'lookahead',
    'adaptive',
    *(
      pytest.param(name, marks=pytest.mark.slow)
      for name in ('tree', 'ngram', 'ngram or model', 'dynamic', 'coupled')
    ),
  ],
)
def test_any_drafter_and_verifier(pair, name):
  drafter, verifier = _drafters(*pair)[name]
  requests = queued.requests(15, 3)
  alone = [
    queued.alone(pair[0], drafter, verifier, request) for request in requests
  ]
  engine = Engine(
    pair[0],
    slots=4,
    drafter=drafter,
    verifier=verifier,
    rounds=3,
    max_length=queued.LENGTH,
  )
  _check(requests, _arriving(engine, requests, 4, 0.1), alone)


def test_generate_is_that_of_a_batch(pair, chain):
  """Of more prompts than slots; counts too."""
  prompts = [request['prompt'][:20] for request in queued.requests(11, 5)]
  args = dict(
    max_new_tokens=[3 + 2 * i for i in range(11)],
    sampling=SamplingParams(temperature=np.linspace(0, 1.5, 11)),
    seed=9,
    stop_tokens=[4],
  )
  wanted = specsamp.generate(pair[0], prompts, drafter=chain, **args)
  with Engine(
    pair[0], slots=3, drafter=chain, max_length=queued.LENGTH
  ) as engine:
    got = engine.generate(prompts, **args)
    # Samples of a prompt are rows of their own, one after the other.
    more = args | dict(max_new_tokens=5, sampling=None)
    rows = [row for row in prompts[:4] for _ in range(3)]
    many = engine.generate(prompts[:4], n=3, **more)
    each = specsamp.generate(pair[0], rows, drafter=chain, **more)
    assert [text.tokens for text in many] == each.tokens
    own = engine.generate(prompts[:2], n=2, **more | dict(seed=[12, 30]))
    more['seed'] = [12, 13, 30, 31]
    each = specsamp.generate(pair[0], rows[1:5], drafter=chain, **more)
    assert [text.tokens for text in own] == each.tokens
  assert [each.tokens for each in got] == wanted.tokens
  assert [each.text for each in got] == wanted.texts
  assert [each.prompt for each in got] == prompts
  for name in ('rounds', 'num_drafted_per_pos', 'num_accepted_per_pos'):
    rows = [getattr(each.stats, name) for each in got]
    np.testing.assert_array_equal(rows, getattr(wanted, name))
  one = got[-1]
  assert one.num_accepted == wanted.num_accepted_per_pos[-1].sum()
  assert one.block_efficiency == 1 + one.num_accepted / wanted.rounds[-1]


def test_samples_of_a_prompt_share_its_prefill(pair, chain, monkeypatch):
  engine = Engine(pair[0], slots=3, drafter=chain, max_length=queued.LENGTH)
  prefills, real = [], engine._batch.prefill
  monkeypatch.setattr(
    engine._batch,
    'prefill',
    lambda prompts: prefills.append(prompts) or real(prompts),
  )
  # More samples than slots: the last ones wait for one.
  args = dict(max_new_tokens=12, stop_tokens=[])
  first = engine.submit([3, 1, 4], n=7, seed=20, **args)
  second = engine.submit([3, 1, 4], n=2, seed=[22, 5], **args)
  got = {(each.id, each.index): each.tokens for each in engine.results()}
  assert len(prefills) == 2 and len(got) == 9
  wanted = specsamp.generate(
    pair[0], [[3, 1, 4]] * 8, drafter=chain, seed=[*range(20, 27), 5], **args
  ).tokens
  assert [got[first, i] for i in range(7)] == wanted[:7]
  assert [got[second, i] for i in range(2)] == [wanted[2], wanted[7]]


# Log-probabilities.


def _forced(target, tokens):
  """Logits of one pass over a text, float64 [T, V]."""
  out = jax.jit(target.transformer.apply)(
    {'params': target.params},
    np.asarray([tokens + [0] * (queued.LENGTH - len(tokens))]),
  )
  return np.asarray(out.logits[0, : len(tokens)], np.float64)


def _log_softmax(logits):
  logits = logits - logits.max(-1, keepdims=True)
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize(
  'name',
  ['none', 'tree', 'coupled', pytest.param('chain', marks=pytest.mark.slow)],
)
def test_logprobs_are_those_of_one_pass(pair, chain, name):
  target, _ = pair
  drafter, verifier = {**_drafters(*pair), 'chain': (chain, 'block')}[name]
  engine = Engine(
    target,
    slots=3,
    drafter=drafter,
    verifier=verifier,
    max_length=queued.LENGTH,
    logprobs=3,
    prompt_logprobs=True,
  )
  requests = {engine.submit(**each): each for each in queued.requests(8, 6)}
  chunks, accepted = {}, 0
  for chunk in engine.stream():
    chunks.setdefault(chunk.id, []).append(chunk)
  for id, request in requests.items():
    got = chunks[id][-1].completion
    accepted += got.num_accepted
    logits = _forced(target, got.prompt + got.tokens)
    raw = _log_softmax(logits)
    start, end = len(got.prompt), len(got.prompt) + len(got.tokens)
    at = np.arange(start - 1, end - 1)
    np.testing.assert_allclose(got.logprobs.raw, raw[at, got.tokens], atol=1e-5)
    p = specsamp.sampling.transforms.probabilities(
      jnp.asarray(logits[None, at], jnp.float32), request['sampling']
    )
    np.testing.assert_allclose(
      got.logprobs.processed,
      np.log(np.asarray(p)[0, np.arange(len(at)), got.tokens]),
      atol=1e-5,
    )
    best = np.argsort(-raw, axis=-1, kind='stable')[:, :3]
    np.testing.assert_array_equal(got.logprobs.top_tokens, best[at])
    np.testing.assert_allclose(
      got.logprobs.top_raw, np.take_along_axis(raw[at], best[at], 1), atol=1e-5
    )
    prompt = np.arange(start - 1)
    own = got.prompt_logprobs
    assert np.isnan(own.raw[0]) and len(own.raw) == start
    np.testing.assert_allclose(
      own.raw[1:], raw[prompt, got.prompt[1:]], atol=1e-5
    )
    np.testing.assert_array_equal(own.top_tokens[1:], best[prompt])
    streamed = [chunk.logprobs.raw for chunk in chunks[id]]
    np.testing.assert_array_equal(np.concatenate(streamed), got.logprobs.raw)
  assert accepted or name == 'none'


def test_logprobs_change_no_token(pair, chain):
  prompts = [request['prompt'][:9] for request in queued.requests(5, 7)]
  texts = [
    [
      each.tokens
      for each in Engine(
        pair[0],
        slots=2,
        drafter=chain,
        max_length=queued.LENGTH,
        logprobs=logprobs,
      ).generate(prompts, max_new_tokens=12)
    ]
    for logprobs in (None, 0)
  ]
  assert texts[0] == texts[1]


# What is compiled.


def test_nothing_compiles_once_it_is_warm(pair, chain, compilations):
  engine = Engine(pair[0], slots=6, drafter=chain, max_length=queued.LENGTH)
  engine.compile()  # a number of slots that no other test has
  assert compilations
  compilations.clear()
  for seed in (8, 9):
    _arriving(engine, queued.requests(40, seed), seed, 0.2)
  engine.submit([1, 2], n=5, max_new_tokens=9)
  assert len(list(engine.results())) == 5
  assert not compilations
  # Nor by another engine of the kind.
  other = Engine(pair[0], slots=6, drafter=chain, max_length=queued.LENGTH)
  other.submit([1], max_new_tokens=9)
  list(other.results())
  assert not compilations


@pytest.fixture(
  scope='module',
  params=['tree', pytest.param('chain', marks=pytest.mark.slow)],
)
def large(request):
  """An engine whose caches are far larger than everything else."""
  shape = dict(max_length=512, head_dim=32, num_kv_heads=2)
  target = tiny.model(11, 0, num_layers=2, **shape)
  draft = tiny.model(11, 1, num_layers=1, **shape)
  law = 'without_replacement'
  drafter = model_drafter(draft, 3 if request.param == 'chain' else TREE, law)
  engine = Engine(target, slots=4, drafter=drafter, verifier='multi_candidate')
  engine.submit([1, 2, 3], max_new_tokens=400)
  engine.step()
  return engine


@pytest.mark.integration
@pytest.mark.usefixtures('optimized')
def test_neither_insert_nor_burst_copies_a_cache(large):
  batch = large._batch
  state, inputs = batch._state, batch._inputs
  row = batch.prefill(batch.prompts(_one_prompt(), 0))
  zero = np.int32(0)
  insert = batch._programs.insert.lower(state, row, zero, zero, zero)
  insert = insert.compile()
  idle = np.zeros(batch.slots, bool)
  burst = batch._programs.burst.lower(inputs, state, zero, zero, idle).compile()
  caches = elsewhere.caches(state)
  assert len(caches) == 2 * (2 + 1)
  for program in (insert, burst):
    shapes = {array.shape for array in caches}
    assert not elsewhere.copies(program.as_text(), shapes)
    memory = program.memory_analysis()
    assert memory.alias_size_in_bytes >= sum(leaf.nbytes for leaf in caches)
    assert memory.temp_size_in_bytes < state.cache.keys[0].nbytes
  before = [x.unsafe_buffer_pointer() for x in caches]
  batch.put(row, 1, 5, _scalars(SamplingParams()), inputs.stop_tokens[0])
  after = [x.unsafe_buffer_pointer() for x in elsewhere.caches(batch._state)]
  assert before == after


def _scalars(sampling):
  return jax.tree.map(lambda x: x[0], sampling.broadcast(1))


def _one_prompt():
  one = np.ones((1,), np.int32)
  return specsamp.decoding.state.Prompts(
    np.zeros((1, 32), np.int32), 2 * one, 9 * one, one
  )
