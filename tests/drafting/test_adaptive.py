"""Adaptive draft lengths, and drafters that read the text they skipped."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from readers import GREEDY, VOCAB, check_greedy, features_of, make_drafter
from testing import tiny

import specsamp
from specsamp.decoding import batch, depth_costs, programs
from specsamp.decoding.request import Request
from specsamp.drafting import (
  TokenTree,
  adaptive,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.drafter import after_prompts, cache_slots
from specsamp.errors import UserError
from specsamp.models import kv_cache
from specsamp.sampling.transforms import SamplingParams

PROMPTS = [[3, 1, 4, 1, 5], [7], [2, 7, 1]]
DEPTHS = (0, 1, 3)
kinds = pytest.mark.parametrize('kind', ['model', 'eagle'])


@pytest.fixture(scope='module', autouse=True)
def patched():
  """Patches code in programs, whose keys do not contain the patches.

  Caches are written as on accelerators, where a write past the end is shifted.
  Few features are kept, so that they are read and overwritten.
  """
  programs._kept.clear()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(kv_cache, '_scatter', kv_cache._update_slices)
    patch.setattr(adaptive, '_MAX_BEHIND', 16)
    yield
  programs._kept.clear()
  _request.cache_clear()


@functools.cache
def _drafter(kind):
  target = tiny.model(VOCAB, 28, max_length=64, num_layers=1)
  if kind == 'model':
    draft = tiny.model(VOCAB, 5, max_length=64, num_layers=1)
    return target, model_drafter(draft, 3)
  return target, make_drafter(kind, 'chain', target)


def _adaptive(kind):
  return adaptive.adaptive_drafter(_drafter(kind)[1], DEPTHS, (1.0, 1.5, 2.0))


def _make(kind, prompts=PROMPTS, max_new_tokens=26, **options):
  options = dict(seed=1, stop_tokens=[]) | options
  return Request.make(
    _drafter(kind)[0],
    prompts,
    _adaptive(kind),
    max_new_tokens=max_new_tokens,
    **options,
  )


@functools.cache
def _request(kind):
  """Returns a request whose caches have no slot to spare at its end."""
  request = _make(kind)
  capacity = int(max(request.prompts.limit)) + cache_slots(_adaptive(kind))
  return dataclasses.replace(request, capacity=capacity)


def _like(request, **options):
  """Returns a request that runs the same programs."""
  other = _make('model', **options)
  other = dataclasses.replace(other, capacity=request.capacity)
  assert other.program_key == request.program_key
  return other


def _at(request, depth):
  """Returns the request with costs that make every round take a depth."""
  parts = request.inputs.drafter.at_each_choice()
  return request.with_drafter(parts[DEPTHS.index(depth)])


@kinds
def test_skipped_text_is_read(kind):
  """After rounds without a draft it drafts as after the text as a prompt.

  So do rows that are inserted meanwhile, whose text is shorter or longer than
  the text that the batch skipped.
  """
  request = _at(_request(kind), 0)
  state = request.decode(request.prefill(), rounds=25)
  # Features were read after 16 rounds, whether or not it drafted.
  assert state.drafter.behind == (25 if kind == 'model' else 9)
  _check_next_draft(request, state)

  state = request.decode(request.prefill(), rounds=11)
  insert = jax.jit(batch.insert)
  for slot, prompt in ((1, [5, 2, 6]), (2, [1, 2] * 8)):
    late = _make(kind, [prompt], 10)
    row = dataclasses.replace(late, capacity=request.capacity).prefill()
    state = insert(state, row, *np.int32([slot, 7, 0]))
  assert state.drafter.behind == 11
  _check_next_draft(request, state)


@jax.jit
def _drafts(drafter, state, tokens, features_bsd):
  """Returns the drafts after a state, and after its text as a prompt."""
  length_b, keys_b = state.length, state.keys
  sampling = SamplingParams().broadcast(len(length_b))
  inner = drafter.drafter
  fresh = after_prompts(
    inner, tokens, length_b, features_bsd, tokens.shape[1] + 8
  )
  return [
    each.propose(state, tokens, length_b, sampling, keys_b)[0]
    for each, state in ((drafter, state.drafter), (inner, fresh))
  ]


def _check_next_draft(request, state):
  drafter = _at(request, 3).inputs.drafter
  at = np.arange(state.tokens.shape[1])[None]
  tokens = np.where(at < np.asarray(state.length)[:, None], state.tokens, 0)
  features_bsd = features_of(request.model, tokens, drafter.taps)
  draft, expected = _drafts(drafter, state, tokens, features_bsd)
  np.testing.assert_allclose(draft.q, expected.q, atol=1e-5)
  np.testing.assert_array_equal(draft.tokens, expected.tokens)


def test_rows_of_one_seed_have_different_random_bits():
  """Otherwise a row that is ahead would reveal the bits of one behind."""
  prompts, seeds = [[3, 1, 4]] * 3, np.int32([5, 6, 5])
  request = _at(_like(_request('model'), prompts=prompts, seed=seeds), 3)
  tokens = np.asarray(request.decode(request.prefill()).tokens)
  assert (tokens[0] != tokens[2]).any()
  # In a coupling the seed alone determines the text.
  coupled = _make('model', prompts, verifier='gumbel')
  first, _, third = coupled.decoder._row_keys(coupled.inputs.drafter, seeds)
  assert first == third


@kinds
def test_greedy_text_is_the_targets(kind):
  """Rounds without a draft alternate with short and long drafts."""
  request = _request(kind)
  inputs = request.inputs.replace(sampling=GREEDY.broadcast(len(PROMPTS)))
  request = dataclasses.replace(request, inputs=inputs)
  state, rounds = request.prefill(), 0
  while not np.asarray(state.done).all():
    depth = (0, 1, 0, 3)[rounds % 4]
    state, rounds = _at(request, depth).decode(state, rounds=1), rounds + 1
  ends = zip(PROMPTS, np.asarray(state.length), strict=True)
  texts = [
    row[len(prompt) : end].tolist()
    for row, (prompt, end) in zip(state.tokens, ends, strict=True)
  ]
  check_greedy(request.model, PROMPTS, texts)
  drafted = np.asarray(state.stats.num_drafted_per_pos)
  assert (drafted[:, 0] > drafted[:, 2]).all() and drafted[:, 2].all()


def _engine(slots=2):
  """Returns an engine whose rounds all have the deepest draft."""
  drafter = _adaptive('model').at_each_choice()[-1]
  return specsamp.Engine(
    _drafter('model')[0], slots=slots, drafter=drafter, max_length=32, rounds=1
  )


def test_requests_of_one_seed_have_different_random_bits():
  """In two slots at once, and one after the other in one slot."""
  engine = _engine()
  for _ in range(3):
    engine.submit([3, 1, 4], max_new_tokens=20, stop_tokens=[])
  texts = {tuple(completion.tokens) for completion in engine.results()}
  assert len(texts) == 3


@pytest.mark.parametrize('slots', [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_engine_keeps_the_shared_counts(slots):
  """But not those of a row: a new row has accepted nothing yet."""
  engine = _engine(slots)
  batch = engine._batch
  assert batch._inputs.drafter.refilled
  engine.submit([3, 1, 4], max_new_tokens=20, stop_tokens=[])
  engine.step()
  # Empty slots begin as copies of the first row, and do not count.
  assert 1 <= batch._state.drafter.policy.shared.judged.sum() <= 3
  list(engine.results())
  before = jax.tree.map(np.array, batch._state.drafter.policy)
  assert before.shared.judged.any() and before.tried.any()
  sampling = jax.tree.map(lambda x: x[0], SamplingParams().broadcast(1))
  prompts = _make('model', [[2, 7]], 20).prompts
  row = batch.prefill(prompts)
  for slot in range(slots):
    batch.insert(row, slot, 7, sampling, batch._inputs.stop_tokens[slot])
  after = batch._state.drafter.policy
  jax.tree.map(np.testing.assert_array_equal, after.shared, before.shared)
  assert not np.asarray(after.tried).any()


def test_a_request_reads_as_many_slots_as_an_engine():
  """So the cost of its rounds is that of the engine's."""
  engine = _engine()
  engine.generate(PROMPTS[1:], max_new_tokens=20)
  request = _make('model', PROMPTS[1:], 20, max_length=32)
  state = request.programs.prefill.eval_shape(request.inputs, request.prompts)
  shapes = lambda state: jax.tree.map(
    jnp.shape, (state.cache, state.drafter.drafter)
  )
  assert shapes(state) == shapes(engine._batch._state)
  with pytest.raises(UserError, match='max_length: got 22, expected .* 23 to'):
    _make('model', PROMPTS[1:], 20, max_length=22)


@pytest.mark.parametrize(
  'kind', [pytest.param('model', marks=pytest.mark.slow), 'eagle']
)
def test_confidence_stops_a_draft_for_all_rows_or_none(kind):
  """One token with a bound that no row reaches, all without a bound."""
  target, drafter = _drafter(kind)
  depths = {}
  for bound in (0.0, 1.0):
    made = adaptive.adaptive_drafter(drafter, (0, 3), (1.0, 1.1), bound)
    out = specsamp.generate(
      target, PROMPTS, drafter=made, max_new_tokens=12, stop_tokens=[]
    )
    depths[bound] = {n for row in out.num_drafted_per_round for n in row}
  assert 3 in depths[0.0] and depths[1.0] <= {0, 1}


@pytest.mark.parametrize(
  ('args', 'message'),
  [
    (dict(depths=()), r'depths: got \(\), .* the last being the 3'),
    (dict(depths=(0, 3, 1)), 'expected ascending integers'),
    (dict(depths=(-1, 3)), 'expected ascending integers'),
    (dict(depths=(0, 1.0, 3)), 'expected ascending integers'),
    (dict(depths=(0, 2), ms=(1, 2)), 'the last being the 3'),
    (dict(ms=(1.0, 2.0)), 'expected a cost above 0 for each of the 3'),
    (dict(ms=(1.0, 0.0, 2.0)), 'expected a cost above 0'),
    (dict(ms=(1.0, float('nan'), 2.0)), 'expected a cost above 0'),
    (dict(ms='abc'), "ms: got 'abc', expected a cost"),
    (dict(least_confidence=1.5), 'least_confidence: got 1.5, expected 0 to 1'),
  ],
)
def test_invalid_arguments(args, message):
  _, drafter = _drafter('model')
  args = dict(drafter=drafter, depths=DEPTHS, ms=(1.0, 1.5, 2.0)) | args
  with pytest.raises(UserError, match=message):
    adaptive.adaptive_drafter(**args)


def test_drafters_whose_depth_cannot_be_chosen():
  _, drafter = _drafter('model')
  by_branches = drafter.replace(tree=TokenTree((-1, 0, 1, 0)))
  for made, message in (
    (ngram_drafter(3), 'chooses itself how much it drafts or sends'),
    (by_branches, r'parents \(-1, 0, 1, 0\), expected'),
    # The tree of a drafter of two is that of both.
    (ngram_or_model(ngram_drafter(3), drafter), 'chooses itself how much'),
  ):
    with pytest.raises(UserError, match=message):
      adaptive.adaptive_drafter(made, DEPTHS, (1.0, 1.5, 2.0))


def test_each_depth_is_timed_in_its_own_rounds():
  request = _request('model')
  ms = depth_costs.measure(request, repeats=1)
  assert ms.shape == (3,) and ms.dtype == np.float32 and (ms > 0).all()
  for depth in DEPTHS:
    state = _at(request, depth).decode(request.prefill(), rounds=8)
    is_drafted = np.asarray(state.stats.num_drafted_per_pos) > 0
    assert (is_drafted == (np.arange(3) < depth)[None]).all()
  target, drafter = _drafter('model')
  plain = Request.make(target, PROMPTS, drafter, max_new_tokens=4)
  with pytest.raises(UserError, match='got a request of a LanguageModelDraft'):
    depth_costs.measure(plain)


def test_compiling_runs_each_depth_and_its_catching_up(monkeypatch):
  """A part that runs for the first time must not be timed."""
  ran = []
  decode = Request.decode

  def recorded(request, state, rounds):
    state = decode(request, state, rounds=rounds)
    ran.append((int(state.drafter.depth), int(state.drafter.behind)))
    return state

  monkeypatch.setattr(Request, 'decode', recorded)
  _request('model').compile()
  assert {depth for depth, _ in ran} == {0, 1, 3}
  # A round with a draft comes after a round without, which it reads.
  for before, (depth, behind) in zip(ran, ran[1:], strict=False):
    if depth:
      assert before == (0, 1) and behind == 0
