"""Drafts of a chosen depth, and drafters that read what they have missed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from readers import VOCAB, features_of, make_drafter
from testing import tiny

import specsamp
from specsamp.decoding import depth_costs, engine_programs, programs
from specsamp.decoding.request import Request
from specsamp.drafting import (
  TokenTree,
  adaptive,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.draft import ExtraTree
from specsamp.drafting.policy import Policy
from specsamp.drafting.trained import KINDS
from specsamp.errors import UserError
from specsamp.models import kv_cache
from specsamp.sampling.transforms import SamplingParams

PROMPTS = [[3, 1, 4, 1, 5], [7], [2, 7, 1]]
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture
def patched(monkeypatch):
  """monkeypatch, of programs: what it puts in is in no program's key."""
  programs._kept.clear()
  yield monkeypatch
  programs._kept.clear()


def _drafter(kind, shape='chain'):
  target = tiny.model(VOCAB, 28, max_length=64, num_layers=tiny.layers(kind))
  if kind == 'model':
    draft = tiny.model(VOCAB, 5, max_length=64, num_layers=1)
    return target, model_drafter(draft, 3)
  return target, make_drafter(kind, shape, target)


def _adaptive(drafter, between=(1,)):
  """Depths: none, those between, all. Each is a branch to be compiled."""
  depths = (0, *between, drafter.tree.depth)
  ms = np.linspace(1.0, 2.0, len(depths)).tolist()
  return adaptive.adaptive_drafter(drafter, depths, ms)


def _of(*quick):
  """All kinds, of which the others are slow."""
  return [
    pytest.param(kind, marks=[] if kind in quick else [pytest.mark.slow])
    for kind in ('model', *KINDS)
  ]


@pytest.mark.parametrize(
  ('kind', 'most', 'rounds'),
  [
    ('model', 64, 25),
    ('model', 64, 1),
    ('eagle', 64, 25),
    ('eagle', 4, 25),
    pytest.param('model', 4, 25, marks=pytest.mark.slow),
    *(
      pytest.param(kind, most, 25, marks=pytest.mark.slow)
      for kind in KINDS
      if kind != 'eagle'
      for most in (64, 4)
    ),
  ],
)
def test_what_was_missed_is_read(kind, most, rounds, patched):
  """After rounds without a draft it drafts as if the text had been a prompt.

  After 25 it is the text's last, in caches that have no slot to spare. They are
  written as accelerators do, which shift what goes beyond.
  """
  patched.setattr(kv_cache, '_scatter', kv_cache._update_slices)
  patched.setattr(Policy, 'choose', lambda *_: jnp.int32(0))
  patched.setattr(adaptive, '_MOST_BEHIND', most)
  target, drafter = _drafter(kind)
  job = Request.make(
    target, PROMPTS, _adaptive(drafter, ()), 'token', SamplingParams(), 26, 1,
    [],
  )  # fmt: skip
  capacity = max(job.prompts.limit) + job.inputs.drafter.room
  job = dataclasses.replace(job, capacity=int(capacity))
  state = job.decode(job.prefill(), rounds=rounds)
  missed = rounds if most == 64 or kind == 'model' else 1
  assert state.drafter.behind == missed
  _check_next_draft(target, job.inputs.drafter, state, patched)


@pytest.mark.parametrize('prompt', [[5, 2, 6], [1, 2] * 8], ids=len)
@pytest.mark.parametrize('kind', _of('eagle'))
def test_a_row_that_comes_later_is_read_too(kind, prompt, patched):
  """Its text is shorter, or longer, than what the batch has not read."""
  patched.setattr(Policy, 'choose', lambda *_: jnp.int32(0))
  target, drafter = _drafter(kind)
  args = (_adaptive(drafter, ()), 'token', SamplingParams(), 30, 1, [])
  job = Request.make(target, PROMPTS, *args)
  state = job.decode(job.prefill(), rounds=11)
  late = Request.make(target, [prompt], *args)
  row = dataclasses.replace(late, capacity=job.capacity).prefill()
  state = jax.jit(engine_programs.insert)(state, row, *np.int32([1, 7, 0]))
  assert state.drafter.behind == 11
  _check_next_draft(target, job.inputs.drafter, state, patched)


def _check_next_draft(target, made, state, patched):
  """It is that of a drafter for which the text has been a prompt."""
  patched.setattr(Policy, 'choose', lambda *_: jnp.int32(1))
  at = np.arange(state.tokens.shape[1])[None]
  tokens = np.where(at < np.asarray(state.length)[:, None], state.tokens, 0)

  @jax.jit
  def drafts(made, state, tokens, features_bsd):
    length_b, keys_b = state.length, state.keys
    sampling = SamplingParams().broadcast(len(length_b))
    fresh = made.drafter.init(
      tokens, length_b, features_bsd, tokens.shape[1] + 8
    )
    return [
      drafter.propose(own, tokens, length_b, sampling, keys_b)[0]
      for drafter, own in ((made, state.drafter), (made.drafter, fresh))
    ]

  features_bsd = features_of(target, tokens, made.taps)
  got, expected = drafts(made, state, tokens, features_bsd)
  np.testing.assert_allclose(got.q, expected.q, atol=1e-5)
  np.testing.assert_array_equal(got.tokens, expected.tokens)


def test_rows_of_one_seed_have_random_bits_of_their_own():
  """Else a row that is ahead would tell the depth by bits of one behind."""
  target, drafter = _drafter('model')

  def texts(drafter, verifier):
    return specsamp.generate(
      target, [[3, 1, 4]] * 3, drafter=drafter, verifier=verifier,
      max_new_tokens=20, seed=[5, 6, 5], stop_tokens=[],
    ).tokens  # fmt: skip

  first, _, third = texts(drafter, 'token')
  assert first == third
  first, _, third = texts(_adaptive(drafter, ()), 'token')
  assert first != third
  # Of a coupling the seed alone tells the text.
  first, _, third = texts(_adaptive(drafter, ()), 'gumbel')
  assert first == third


def test_requests_of_one_seed_have_random_bits_of_their_own(patched):
  """In two slots at once, and one after the other in one.

  At one depth: texts of the same bits that draft otherwise would differ too.
  """
  patched.setattr(Policy, 'choose', lambda *_: jnp.int32(1))
  target, drafter = _drafter('model')
  for made, count in ((drafter, 1), (_adaptive(drafter, ()), 3)):
    engine = specsamp.Engine(target, slots=2, drafter=made, max_length=32)
    for _ in range(3):
      engine.submit([3, 1, 4], max_new_tokens=20, stop_tokens=[])
    texts = {tuple(text.tokens) for text in engine.results()}
    assert len(texts) == count


@pytest.mark.parametrize('kind', _of('hydra', 'eagle'))
def test_greedy_text_is_the_targets(kind, patched):
  """Rounds without a draft, with a short one and with a long one in turn."""

  def in_turn(self, *_):
    tried = self.of_all.judged.sum().astype(jnp.int32)
    return jnp.where(self.of_all.waited > 0, 1 + tried % 2, 0)

  patched.setattr(Policy, 'choose', in_turn)
  target, drafter = _drafter(kind)
  run = lambda drafter: specsamp.generate(
    target, PROMPTS, drafter=drafter, sampling=GREEDY, max_new_tokens=24,
    stop_tokens=[],
  )  # fmt: skip
  got = run(_adaptive(drafter))
  assert got.tokens == run(None).tokens
  lengths = {n for row in got.num_drafted_per_round for n in row}
  assert lengths >= {0, 1, drafter.tree.depth}


def test_an_engine_refills_its_rows():
  target, drafter = _drafter('model')
  engine = specsamp.Engine(target, drafter=_adaptive(drafter), max_length=16)
  assert engine._batch._inputs.drafter.refilled


@pytest.mark.parametrize('slots', [1, 2])
def test_an_engine_knows_of_the_texts_before(slots):
  """But not as their rows: a new one has accepted nothing yet."""
  target, drafter = _drafter('model')
  engine = specsamp.Engine(
    target, slots=slots, drafter=_adaptive(drafter), max_length=32
  )
  engine.generate([[3, 1, 4]], max_new_tokens=20, stop_tokens=[])
  batch = engine._batch
  before = jax.tree.map(np.array, batch._state.drafter.policy)
  assert before.of_all.judged.any() and before.tried.any()
  sampling = jax.tree.map(lambda x: x[0], SamplingParams().broadcast(1))
  row = batch.prefill(
    Request.make(
      target, [[2, 7]], None, 'token', SamplingParams(), 20, 1, []
    ).prompts
  )
  for slot in range(slots):
    batch.put(row, slot, 7, sampling, batch._inputs.stop_tokens[slot])
  after = batch._state.drafter.policy
  jax.tree.map(np.testing.assert_array_equal, after.of_all, before.of_all)
  assert not np.asarray(after.tried).any()


def test_slots_without_a_text_tell_nothing():
  """They begin as copies of the first text."""
  target, drafter = _drafter('model')
  engine = specsamp.Engine(
    target, slots=4, drafter=_adaptive(drafter), max_length=32, rounds=1
  )
  engine.submit([3, 1, 4], max_new_tokens=20, stop_tokens=[])
  engine.step()
  judged = engine._batch._state.drafter.policy.of_all.judged
  assert 1 <= judged.sum() <= drafter.tree.depth


@pytest.mark.parametrize('kind', _of('model', 'eagle'))
def test_confidence_stops_a_draft_for_all_rows_or_none(kind):
  """With a bound that no row reaches, one token; with none, all of them."""
  target, drafter = _drafter(kind)
  rounds = {}
  for least in (0.0, 1.0):
    made = adaptive.adaptive_drafter(drafter, (0, 3), (1.0, 1.1), least)
    got = specsamp.generate(
      target, PROMPTS, drafter=made, max_new_tokens=12,
      stop_tokens=[],
    )  # fmt: skip
    rounds[least] = {n for row in got.num_drafted_per_round for n in row}
  assert 3 in rounds[0.0] and rounds[1.0] <= {0, 1}


@pytest.mark.parametrize(
  ('args', 'message'),
  [
    (dict(depths=()), 'depths: got none'),
    (dict(depths=(0, 3, 1)), 'expected ascending'),
    (dict(depths=(-1, 3)), 'expected ascending'),
    (dict(depths=(0, 2), ms=(1, 2)), 'the greatest is 2, expected the 3'),
    (dict(ms=(1.0, 2.0)), 'expected a cost above 0 for each of the 3'),
    (dict(ms=(1.0, 0.0, 2.0)), 'expected a cost above 0'),
    (dict(ms=(1.0, float('inf'), 2.0)), 'expected a cost above 0'),
    (dict(ms='abc'), "ms: got 'abc', expected a cost"),
    (dict(depths=(0, 1.0, 3)), 'expected ascending numbers'),
    (dict(depths=(0,), ms=(1.0,)), 'the greatest is 0, expected the 3'),
    (dict(ms=(1.0, float('nan'), 2.0)), 'expected a cost above 0'),
    (dict(least_confidence=1.5), 'least_confidence: got 1.5, expected 0 to 1'),
    (dict(drafter=ngram_drafter(3)), 'chooses itself how much it drafts'),
    (dict(extra_tree=ExtraTree((-1,))), 'sends tokens beside its draft'),
    (dict(tree=TokenTree((-1, 0, 1, 0))), r'parents \(-1, 0, 1, 0\), expected'),
  ],
)
def test_what_cannot_be_chosen_from(args, message):
  _, drafter = _drafter('model')
  if 'extra_tree' in args:
    kind = type(drafter)
    drafter = type('WithRiders', (kind,), args)(**vars(drafter))
    args = {}
  elif 'tree' in args:
    drafter = drafter.replace(tree=args['tree'])
    args = {}
  given = dict(drafter=drafter, depths=(0, 1, 3), ms=(1.0, 1.5, 2.0)) | args
  with pytest.raises(UserError, match=message):
    adaptive.adaptive_drafter(**given)


def test_a_drafter_of_two_is_no_drafter_of_a_chosen_depth():
  """Its tree is that of both."""
  _, drafter = _drafter('model')
  both = ngram_or_model(ngram_drafter(3), drafter)
  with pytest.raises(UserError, match='chooses itself how much it drafts'):
    adaptive.adaptive_drafter(both, (0, 1, 3), (1.0, 1.5, 2.0))


def test_costs_are_means_of_the_fastest_third(monkeypatch):
  target, drafter = _drafter('model')
  job = Request.make(target, PROMPTS, _adaptive(drafter), 'token', None, 40)
  monkeypatch.setattr(Request, 'compile', lambda self: None)
  # Depth by depth, six turns.
  times = iter([9, 2, 90, 1, 9, 3, 9, 9, 9, 3, 9, 4, 9, 2, 2, 90, 9, 9])
  monkeypatch.setattr(depth_costs, '_ms_a_round', lambda _: next(times))
  assert depth_costs.measure(job, repeats=6).tolist() == [2, 2, 2.5]


def test_each_depth_is_timed_in_rounds_of_its_own():
  target, drafter = _drafter('model')
  job = Request.make(target, PROMPTS, _adaptive(drafter), 'token', None, 40)
  ms = depth_costs.measure(job, repeats=1)
  assert ms.shape == (3,) and ms.dtype == np.float32 and (ms > 0).all()
  for i, depth in enumerate((0, 1, 3)):
    part = job.with_drafter(job.inputs.drafter.parts()[i])
    state = part.decode(job.prefill(), rounds=8)
    drafted = np.asarray(state.stats.num_drafted_per_pos) > 0
    assert (drafted == (np.arange(3) < depth)[None]).all()
  plain = Request.make(target, PROMPTS, drafter, 'token', None, 40)
  with pytest.raises(UserError, match='got a request of a LanguageModelDraft'):
    depth_costs.measure(plain)


def test_a_request_reads_as_many_slots_as_an_engine():
  """So that what its rounds cost is what the engine's do."""
  target, drafter = _drafter('model')
  made = _adaptive(drafter)
  engine = specsamp.Engine(target, slots=3, drafter=made, max_length=50)
  engine.generate(PROMPTS, max_new_tokens=20)
  own = Request.make(target, PROMPTS, made, max_new_tokens=20, max_length=50)
  shapes = lambda state: jax.tree.map(
    jnp.shape, (state.cache, state.drafter.drafter)
  )
  assert shapes(own.prefill()) == shapes(engine._batch._state)
  with pytest.raises(UserError, match='max_length: got 24, expected .* 25 to'):
    Request.make(target, PROMPTS, made, max_new_tokens=20, max_length=24)


def test_compiling_runs_each_depth_and_what_it_reads(monkeypatch):
  """What runs first when it is timed would be timed with its setting up."""
  target, drafter = _drafter('model')
  ran = []
  decode = Request.decode

  def recorded(request, state, rounds):
    state = decode(request, state, rounds=rounds)
    ran.append((int(state.drafter.depth), int(state.drafter.behind)))
    return state

  monkeypatch.setattr(Request, 'decode', recorded)
  Request.make(target, PROMPTS, _adaptive(drafter), 'token', None, 40).compile()
  depths = [depth for depth, _ in ran]
  assert set(depths) == {0, 1, 3}
  # Each that drafts comes after a round that did not, which it reads.
  for before, (depth, behind) in zip(ran, ran[1:], strict=False):
    if depth:
      assert before == (0, 1) and behind == 0
