"""The depth that pays, and drafters that read what they have missed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from readers import VOCAB, features_of, make_drafter

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
from specsamp.drafting.draft import Draft, ExtraTree
from specsamp.drafting.policy import PRIOR, Policy
from specsamp.drafting.trained import KINDS
from specsamp.errors import UserError
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams

PROMPTS = [[3, 1, 4, 1, 5], [7], [2, 7, 1]]
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(autouse=True)
def compiled_anew():
  """A policy that a test puts in place of another is in no program's key."""
  programs._kept.clear()
  yield
  programs._kept.clear()


def _drafter(kind, shape='chain'):
  target = tiny.model(VOCAB, 28, max_length=64, num_layers=tiny.layers(kind))
  if kind == 'model':
    draft = tiny.model(VOCAB, 5, max_length=64, num_layers=1)
    return target, model_drafter(draft, 3)
  return target, make_drafter(kind, shape, target)


def _adaptive(drafter, ms=(1.0, 1.5, 2.0)):
  depth = drafter.tree.depth
  return adaptive.adaptive_drafter(drafter, (0, 1, depth), ms)


def _of(*quick):
  """All kinds, of which the others are slow."""
  return [
    pytest.param(kind, marks=[] if kind in quick else [pytest.mark.slow])
    for kind in ('model', *KINDS)
  ]


@pytest.mark.parametrize('most', [64, 4])
@pytest.mark.parametrize('kind', _of('model', 'eagle_parallel'))
def test_what_was_missed_is_read(kind, most, monkeypatch):
  """After rounds without a draft it drafts as if the text had been a prompt."""
  monkeypatch.setattr(Policy, 'choose', lambda *_: jnp.int32(0))
  monkeypatch.setattr(adaptive, '_MOST_BEHIND', most)
  target, drafter = _drafter(kind)
  job = Request.make(
    target, PROMPTS, _adaptive(drafter), 'token', SamplingParams(), 30, 1, []
  )
  state = job.decode(job.prefill(), rounds=11)
  own = state.drafter

  @jax.jit
  def drafts(drafter, own, tokens, features_bsd):
    length_b = own.length + 1  # what the last round emitted
    sampling = SamplingParams().broadcast(len(length_b))
    keys_b = draw.row_keys(jnp.arange(len(length_b), dtype=jnp.int32))
    read = drafter.catch_up(
      own.drafter, tokens, length_b, own.behind, own.features
    )
    fresh = drafter.init(tokens, length_b, features_bsd, tokens.shape[1] + 8)
    return [
      drafter.propose(each, tokens, length_b, sampling, keys_b)[0]
      for each in (read, fresh)
    ]

  assert own.behind == (11 if most == 64 or kind == 'model' else 3)
  at = np.arange(state.tokens.shape[1])[None]
  tokens = np.where(at < np.asarray(state.length)[:, None], state.tokens, 0)
  got, expected = drafts(
    drafter, own, tokens, features_of(target, tokens, drafter.taps)
  )
  np.testing.assert_allclose(got.q, expected.q, atol=1e-5)
  np.testing.assert_array_equal(got.tokens, expected.tokens)


@pytest.mark.parametrize('prompt', [[5, 2, 6], [1, 2] * 8], ids=len)
@pytest.mark.parametrize('kind', _of('eagle', 'model'))
def test_a_row_that_comes_later_is_read_too(kind, prompt, monkeypatch):
  """Its text is shorter, or longer, than what the batch has not read."""
  monkeypatch.setattr(Policy, 'choose', lambda *_: jnp.int32(0))
  target, drafter = _drafter(kind)
  args = (_adaptive(drafter), 'token', SamplingParams(), 30, 1, [])
  job = Request.make(target, PROMPTS, *args)
  state = job.decode(job.prefill(), rounds=11)
  late = Request.make(target, [prompt], *args)
  row = dataclasses.replace(late, capacity=job.capacity).prefill()
  state = jax.jit(engine_programs.insert)(state, row, *np.int32([1, 7, 0]))

  @jax.jit
  def drafts(drafter, state, features_bsd):
    own, tokens, length_b = state.drafter, state.tokens, state.length
    sampling = SamplingParams().broadcast(len(length_b))
    read = drafter.catch_up(
      own.drafter, tokens, length_b, own.behind, own.features
    )
    fresh = drafter.init(tokens, length_b, features_bsd, tokens.shape[1] + 8)
    return [
      drafter.propose(each, tokens, length_b, sampling, state.keys)[0]
      for each in (read, fresh)
    ]

  assert state.drafter.behind == 11
  at = np.arange(state.tokens.shape[1])[None]
  tokens = np.where(at < np.asarray(state.length)[:, None], state.tokens, 0)
  got, expected = drafts(
    drafter, state, features_of(target, tokens, drafter.taps)
  )
  np.testing.assert_allclose(got.q, expected.q, atol=1e-5)
  np.testing.assert_array_equal(got.tokens, expected.tokens)


@pytest.mark.parametrize('slots', [1, 2])
def test_rows_of_one_seed_have_random_bits_of_their_own(slots):
  """Else a row that is ahead would tell the depth by bits of one behind."""
  target, drafter = _drafter('model')
  drafters = drafter, _adaptive(drafter)

  def texts(drafter, verifier):
    return specsamp.generate(
      target, [[3, 1, 4]] * 3, drafter=drafter, verifier=verifier,
      max_new_tokens=20, seed=[5, 6, 5], stop_tokens=[],
    ).tokens  # fmt: skip

  def requests(drafter):
    engine = specsamp.Engine(
      target, slots=slots, drafter=drafter, max_length=32
    )
    for _ in range(3):  # all of the same seed
      engine.submit([3, 1, 4], max_new_tokens=20, stop_tokens=[])
    return [text.tokens for text in engine.results()]

  for own, made in enumerate(drafters):
    first, _, third = texts(made, 'token')
    assert (first != third) == own
    assert len({*map(tuple, requests(made))}) == (3 if own else 1)
    # Of a coupling the seed alone tells the text.
    first, _, third = texts(made, 'gumbel')
    assert first == third


@pytest.mark.parametrize('kind', _of('hydra', 'eagle'))
def test_greedy_text_is_the_targets(kind, monkeypatch):
  """Rounds without a draft, with a short one and with a long one in turn."""

  def in_turn(self, *_):
    tried = self.of_all.judged.sum().astype(jnp.int32)
    return jnp.where(self.of_all.waited > 0, 1 + tried % 2, 0)

  monkeypatch.setattr(Policy, 'choose', in_turn)
  target, drafter = _drafter(kind)
  run = lambda drafter: specsamp.generate(
    target, PROMPTS, drafter=drafter, sampling=GREEDY, max_new_tokens=24,
    stop_tokens=[],
  )  # fmt: skip
  got = run(_adaptive(drafter))
  assert got.tokens == run(None).tokens
  lengths = {n for row in got.num_drafted_per_round for n in row}
  assert lengths >= {0, 1, drafter.tree.depth}


def _draft(valid):
  valid = np.pad(np.asarray(valid, bool), ((0, 0), (1, 0)), constant_values=1)
  tree = TokenTree.chain(valid.shape[1] - 1)
  return Draft(np.zeros(valid.shape, np.int32), None, tree, 'iid', valid)


ALL = np.asarray([True, True])
MS = np.asarray([1.0, 1.4, 1.8, 2.6], np.float32)
DEPTHS = (0, 1, 2, 4)


def _after(rounds):
  """The policy after rounds of which each row accepted so many of 4."""
  policy = Policy.of(2, 4)
  for accepted in rounds:
    policy = policy.seen(_draft(np.ones((2, 4))), 4, np.asarray(accepted), ALL)
  return policy


@pytest.mark.parametrize(
  ('rounds', 'active', 'depth'),
  [
    ([(4, 4)] * 8, ALL, 4),
    ([(1, 1)] * 8, ALL, 1),
    ([(0, 0)] * 8, ALL, 0),
    ([(4, 0)] * 8, np.asarray([True, False]), 4),
    ([(4, 0)] * 8, np.asarray([False, True]), 0),
    # A batch takes as long as its slowest row.
    ([(4, 0)] * 16, ALL, 0),
    ([(4, 1)] * 16, ALL, 1),
    # That it is slow is not known after two rounds.
    ([(4, 0)] * 2, ALL, 1),
    # What was accepted long ago counts less.
    ([(0, 0)] * 40 + [(4, 4)] * 20, ALL, 4),
  ],
)
def test_the_depth_that_pays(rounds, active, depth):
  assert DEPTHS[int(_after(rounds).choose(DEPTHS, MS, active))] == depth


def test_a_draft_of_no_use_is_told_by_its_first_tokens():
  """Sooner than by their mean with the prior."""
  policy = Policy.of(1, 4)
  for _ in range(2):
    policy = policy.seen(_draft(np.ones((1, 4))), 4, np.zeros(1), ALL[:1])
  assert int(policy.choose(DEPTHS, MS, ALL[:1])) == 0
  of_use = 16 * PRIOR / (16 + 2)
  assert policy.acceptance()[0, 3] < 0.6 * of_use


def test_depths_tell_of_each_other():
  """What is known of the second to the fourth token is known of the first."""
  chance = lambda accepted: _after([(accepted,) * 2] * 16).acceptance()
  # Its own token was accepted in every round of either.
  assert (chance(1)[:, 0] < chance(4)[:, 0] - 0.02).all()
  first, _, _, last = chance(2)[0]
  assert first > last + 0.1


def test_rows_tell_of_each_other_but_not_those_that_are_done():
  one = np.asarray([True, False])

  def seen(accepted, rows):
    policy, draft = Policy.of(2, 4), _draft(np.ones((2, 4)))
    return policy.seen(draft, 4, np.asarray(accepted), rows).acceptance()

  alone, beside = seen([4, 0], one), seen([4, 0], ALL)
  np.testing.assert_array_equal(alone, seen([4, 4], one))
  assert (beside[0] < alone[0]).all()
  # A row of which nothing is known yet is taken for what the other is.
  assert (alone[1] > Policy.of(2, 4).acceptance()[1]).all()


def test_after_a_wait_the_draft_that_pays_best_is_tried():
  """Where one token costs as much as two, never one."""
  steep = np.asarray([1.0, 2.0, 2.1, 4.0], np.float32)
  policy = _after([(1, 1), (0, 0)] * 8)
  assert DEPTHS[int(policy.choose(DEPTHS, steep, ALL))] == 0
  of_all = policy.of_all.replace(waited=2 * policy.of_all.wait)
  waited = policy.replace(of_all=of_all)
  assert DEPTHS[int(waited.choose(DEPTHS, steep, ALL))] == 2


def test_where_rows_are_refilled_their_mean_pays():
  policy = _after([(4, 0)] * 16)
  assert DEPTHS[int(policy.choose(DEPTHS, MS, ALL, refilled=True))] == 2


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


def test_a_draft_that_could_never_pay_is_not_tried():
  """Whatever has been waited: all of it accepted would take longer."""
  dear = np.asarray([1.0, 2.5, 3.5, 5.5], np.float32)
  policy = Policy.of(2, 4)
  waited = policy.replace(of_all=policy.of_all.replace(waited=jnp.int32(600)))
  assert DEPTHS[int(waited.choose(DEPTHS, MS, ALL))] > 0
  assert DEPTHS[int(waited.choose(DEPTHS, dear, ALL))] == 0
  # One that could is, if others could not.
  flat = np.asarray([1.0, 2.5, 3.5, 4.5], np.float32)
  assert DEPTHS[int(waited.choose(DEPTHS, flat, ALL))] == 4


def test_a_draft_of_no_use_is_tried_after_the_longest_wait():
  """An engine's next texts may be others."""
  policy = _after([(0, 0)] * 40)
  tries = lambda waited: int(
    policy.replace(
      of_all=policy.of_all.replace(waited=jnp.int32(waited))
    ).choose(DEPTHS, MS, ALL)
  )
  assert (tries(500), tries(512) > 0) == (0, True)


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


def test_a_dear_draft_does_not_pay():
  policy = _after([(2, 2)] * 8)
  assert DEPTHS[int(policy.choose(DEPTHS, MS, ALL))] == 2
  dear = np.asarray([1, 4, 5, 6], np.float32)
  assert DEPTHS[int(policy.choose(DEPTHS, dear, ALL))] == 0


def test_what_never_pays_is_tried_ever_more_seldom():
  policy, tried = Policy.of(2, 4), []
  one = np.asarray([True, False])
  for round_ in range(700):
    depth = DEPTHS[int(policy.choose(DEPTHS, MS, one))]
    if depth:
      tried.append(round_)
    draft = _draft(np.ones((2, depth)))
    # A row that is done accepts whatever it likes.
    policy = policy.seen(draft, depth, np.asarray([0, 4]), one)
    policy = jax.tree.map(np.asarray, policy)
  assert 3 < len(tried) < 15
  gaps = np.diff(tried)
  assert gaps[-1] > 200
  assert (np.diff(gaps) >= 0).all()


def test_a_draft_that_is_left_off_early_costs_less():
  """And is worth less: of what was cut nothing is accepted."""
  whole = _after([(2, 2)] * 8)
  cut = Policy.of(2, 4)
  valid = np.tile([1, 1, 0, 0], (2, 1))
  for _ in range(8):
    cut = cut.seen(_draft(valid), 4, np.asarray((2, 2)), ALL)
  np.testing.assert_allclose(cut.acceptance(), whole.acceptance())
  rates = lambda policy: np.asarray(policy.rates(DEPTHS, MS, ALL))
  assert rates(cut)[3] > 1.2 * rates(whole)[3]
  np.testing.assert_allclose(rates(cut)[:3], rates(whole)[:3], rtol=1e-6)


def test_a_round_costs_no_less_than_the_cheapest():
  """Two tokens were measured as cheaper than one, which is seldom drafted."""
  seldom = jnp.asarray([2, 0, 0, 0], jnp.float32)
  policy = Policy.of(2, 4)
  of_all = policy.of_all.replace(asked=10 * seldom, drafted=seldom)
  policy = policy.replace(of_all=of_all)
  ms = jnp.asarray([1, 10, 2, 2], jnp.float32)
  rates = np.asarray(policy.rates(DEPTHS, ms, ALL))
  assert (rates > 0).all()
  assert (rates <= 5).all()


def test_confidence_is_worth_what_it_was_before():
  """Of drafts of which q thinks little, one row takes all and one nothing."""
  tree = TokenTree.chain(4)
  q = np.full((2, 4, 2), 0.5, np.float32)
  draft = Draft(
    np.zeros((2, 5), np.int32), q, tree, 'iid', np.ones((2, 5), bool)
  )
  policy = Policy.of(2, 4)
  np.testing.assert_allclose(policy.confidence_of(0.5), [0.5, 0.5], rtol=1e-5)
  for _ in range(20):
    policy = policy.seen(draft, 4, np.asarray([4, 0]), ALL)
  takes_all, takes_nothing = policy.confidence_of(0.5)
  assert takes_all < 0.01
  assert takes_nothing > 0.8


def test_what_was_cut_is_no_judgement_of_confidence():
  """Two tokens of four were drafted, and both were accepted."""
  tree = TokenTree.chain(4)
  q = np.full((2, 4, 2), 0.5, np.float32)
  valid = np.tile(np.asarray([1, 1, 1, 0, 0], bool), (2, 1))
  draft = Draft(np.zeros((2, 5), np.int32), q, tree, 'iid', valid)
  policy = Policy.of(2, 4).seen(draft, 4, np.asarray([2, 2]), ALL)
  np.testing.assert_allclose(policy.judged, 2)
  np.testing.assert_allclose(policy.kept, 2)
  np.testing.assert_allclose(policy.surprise, 2 * np.log(2), rtol=1e-6)


def test_greedy_rows_draft_on_as_long_as_pays():
  _, drafter = _drafter('eagle')
  ms = np.asarray([1.0, 1.5, 2.5], np.float32)
  costs = lambda least: adaptive.adaptive_drafter(drafter, (0, 1, 3), ms, least)
  sampling = SamplingParams(temperature=np.asarray([0.0, 1.0])).broadcast(2)
  policy = Policy.of(2, 3)
  least = costs(None)._least(policy, sampling, ALL)
  # The last tokens cost 0.5 each, in which so many are emitted else.
  rate = float(policy.rates((0, 1, 3), ms, ALL).max())
  np.testing.assert_allclose(least, [0.5 * rate / PRIOR, 0], rtol=1e-5)
  np.testing.assert_allclose(
    costs(0.3)._least(policy, sampling, ALL), [0.3] * 2
  )


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
