"""Adaptive draft lengths, and drafters that read the text they skipped."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from readers import VOCAB, features_of, make_drafter
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
from specsamp.drafting.draft import ExtraTree
from specsamp.drafting.drafter import cache_slots
from specsamp.drafting.policy import Policy
from specsamp.drafting.trained import KINDS
from specsamp.errors import UserError
from specsamp.models import kv_cache
from specsamp.sampling.transforms import SamplingParams

PROMPTS = [[3, 1, 4, 1, 5], [7], [2, 7, 1]]
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture
def patched(monkeypatch):
  """monkeypatch for code in programs: their keys do not contain the patches."""
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
  """Returns a drafter of depth 0, those between, and the maximum."""
  depths = (0, *between, drafter.tree.depth)
  ms = np.linspace(1.0, 2.0, len(depths)).tolist()
  return adaptive.adaptive_drafter(drafter, depths, ms)


def _kinds(*quick):
  """Returns all kinds, slow except the quick ones."""
  return [
    pytest.param(kind, marks=[] if kind in quick else [pytest.mark.slow])
    for kind in ('model', *KINDS)
  ]


def _make(target, prompts, drafter, max_new_tokens, **options):
  options = dict(seed=1, stop_tokens=[]) | options
  return Request.make(
    target, prompts, drafter, max_new_tokens=max_new_tokens, **options
  )


@pytest.mark.parametrize(
  ('kind', 'max_behind', 'rounds'),
  [
    ('model', 64, 25),
    ('model', 64, 1),
    ('eagle', 64, 25),
    ('eagle', 4, 25),
    *(
      pytest.param(kind, max_behind, 25, marks=pytest.mark.slow)
      for kind in KINDS
      if kind != 'eagle'
      for max_behind in (64, 4)
    ),
  ],
)
def test_skipped_text_is_read(kind, max_behind, rounds, patched):
  """After rounds without a draft it drafts as after the text as a prompt.

  After 25 rounds caches have no slot to spare. They are written as on
  accelerators, where a write past the end is shifted.
  """
  patched.setattr(kv_cache, '_scatter', kv_cache._update_slices)
  patched.setattr(Policy, 'choose', lambda *_: jnp.int32(0))
  patched.setattr(adaptive, '_MAX_BEHIND', max_behind)
  target, drafter = _drafter(kind)
  drafter = _adaptive(drafter, ())
  request = _make(target, PROMPTS, drafter, 26)
  capacity = int(max(request.prompts.limit)) + cache_slots(drafter)
  request = dataclasses.replace(request, capacity=capacity)
  state = request.decode(request.prefill(), rounds=rounds)
  behind = rounds if max_behind == 64 or kind == 'model' else 1
  assert state.drafter.behind == behind
  _check_next_draft(target, drafter, state, patched)


@pytest.mark.parametrize('prompt', [[5, 2, 6], [1, 2] * 8], ids=len)
@pytest.mark.parametrize('kind', _kinds('eagle'))
def test_a_row_that_is_inserted_later_is_read_too(kind, prompt, patched):
  """Its text is shorter, or longer, than the text that the batch skipped."""
  patched.setattr(Policy, 'choose', lambda *_: jnp.int32(0))
  target, drafter = _drafter(kind)
  drafter = _adaptive(drafter, ())
  request = _make(target, PROMPTS, drafter, 30)
  state = request.decode(request.prefill(), rounds=11)
  late = _make(target, [prompt], drafter, 30)
  row = dataclasses.replace(late, capacity=request.capacity).prefill()
  state = jax.jit(batch.insert)(state, row, *np.int32([1, 7, 0]))
  assert state.drafter.behind == 11
  _check_next_draft(target, drafter, state, patched)


def _check_next_draft(target, drafter, state, patched):
  """Checks that the next draft is that after the text as a prompt."""
  patched.setattr(Policy, 'choose', lambda *_: jnp.int32(1))
  at = np.arange(state.tokens.shape[1])[None]
  tokens = np.where(at < np.asarray(state.length)[:, None], state.tokens, 0)

  @jax.jit
  def drafts(drafter, state, tokens, features_bsd):
    length_b, keys_b = state.length, state.keys
    sampling = SamplingParams().broadcast(len(length_b))
    inner = drafter.drafter
    fresh = inner.init(tokens, length_b, features_bsd, tokens.shape[1] + 8)
    return [
      each.propose(state, tokens, length_b, sampling, keys_b)[0]
      for each, state in ((drafter, state.drafter), (inner, fresh))
    ]

  features_bsd = features_of(target, tokens, drafter.taps)
  draft, expected = drafts(drafter, state, tokens, features_bsd)
  np.testing.assert_allclose(draft.q, expected.q, atol=1e-5)
  np.testing.assert_array_equal(draft.tokens, expected.tokens)


def test_rows_of_one_seed_have_different_random_bits():
  """Otherwise a row that is ahead would reveal the bits of one behind."""
  target, drafter = _drafter('model')

  def run(drafter, verifier):
    return specsamp.generate(
      target, [[3, 1, 4]] * 3, drafter=drafter, verifier=verifier,
      max_new_tokens=20, seed=[5, 6, 5], stop_tokens=[],
    ).tokens  # fmt: skip

  first, _, third = run(drafter, 'token')
  assert first == third
  first, _, third = run(_adaptive(drafter, ()), 'token')
  assert first != third
  # In a coupling the seed alone determines the text.
  first, _, third = run(_adaptive(drafter, ()), 'gumbel')
  assert first == third


def test_requests_of_one_seed_have_different_random_bits(patched):
  """In two slots at once, and one after the other in one slot.

  The depth is fixed: texts of equal bits and different drafts would differ too.
  """
  patched.setattr(Policy, 'choose', lambda *_: jnp.int32(1))
  target, drafter = _drafter('model')
  for made, count in ((drafter, 1), (_adaptive(drafter, ()), 3)):
    engine = specsamp.Engine(target, slots=2, drafter=made, max_length=32)
    for _ in range(3):
      engine.submit([3, 1, 4], max_new_tokens=20, stop_tokens=[])
    texts = {tuple(completion.tokens) for completion in engine.results()}
    assert len(texts) == count


@pytest.mark.parametrize('kind', _kinds('hydra', 'eagle'))
def test_greedy_text_is_the_targets(kind, patched):
  """Rounds without a draft alternate with short and long drafts."""

  def alternate(self, *_):
    judged = self.shared.judged.sum().astype(jnp.int32)
    return jnp.where(self.shared.waited > 0, 1 + judged % 2, 0)

  patched.setattr(Policy, 'choose', alternate)
  target, drafter = _drafter(kind)
  args = dict(sampling=GREEDY, max_new_tokens=24, stop_tokens=[])
  out = specsamp.generate(target, PROMPTS, drafter=_adaptive(drafter), **args)
  assert out.tokens == specsamp.generate(target, PROMPTS, **args).tokens
  lengths = {n for row in out.num_drafted_per_round for n in row}
  assert lengths >= {0, 1, drafter.tree.depth}


@pytest.mark.parametrize('slots', [1, 2])
def test_an_engine_keeps_the_shared_counts(slots):
  """But not those of a row: a new row has accepted nothing yet."""
  target, drafter = _drafter('model')
  engine = specsamp.Engine(
    target, slots=slots, drafter=_adaptive(drafter), max_length=32
  )
  batch = engine._batch
  assert batch._inputs.drafter.refilled
  engine.generate([[3, 1, 4]], max_new_tokens=20, stop_tokens=[])
  before = jax.tree.map(np.array, batch._state.drafter.policy)
  assert before.shared.judged.any() and before.tried.any()
  sampling = jax.tree.map(lambda x: x[0], SamplingParams().broadcast(1))
  row = batch.prefill(_make(target, [[2, 7]], None, 20).prompts)
  for slot in range(slots):
    batch.insert(row, slot, 7, sampling, batch._inputs.stop_tokens[slot])
  after = batch._state.drafter.policy
  jax.tree.map(np.testing.assert_array_equal, after.shared, before.shared)
  assert not np.asarray(after.tried).any()


def test_empty_slots_do_not_count():
  """They begin as copies of the first row."""
  target, drafter = _drafter('model')
  engine = specsamp.Engine(
    target, slots=4, drafter=_adaptive(drafter), max_length=32, rounds=1
  )
  engine.submit([3, 1, 4], max_new_tokens=20, stop_tokens=[])
  engine.step()
  judged = engine._batch._state.drafter.policy.shared.judged
  assert 1 <= judged.sum() <= drafter.tree.depth


@pytest.mark.parametrize('kind', _kinds('model', 'eagle'))
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
    (dict(depths=()), r'depths: got \(\), expected the last to be the 3'),
    (dict(depths=(0, 3, 1)), 'expected ascending integers'),
    (dict(depths=(-1, 3)), 'expected ascending integers'),
    (dict(depths=(0, 1.0, 3)), 'expected ascending integers'),
    (dict(depths=(0, 2), ms=(1, 2)), 'expected the last to be the 3'),
    (dict(ms=(1.0, 2.0)), 'expected a cost above 0 for each of the 3'),
    (dict(ms=(1.0, 0.0, 2.0)), 'expected a cost above 0'),
    (dict(ms=(1.0, float('inf'), 2.0)), 'expected a cost above 0'),
    (dict(ms=(1.0, float('nan'), 2.0)), 'expected a cost above 0'),
    (dict(ms='abc'), "ms: got 'abc', expected a cost"),
    (dict(least_confidence=1.5), 'least_confidence: got 1.5, expected 0 to 1'),
    (dict(drafter=ngram_drafter(3)), 'chooses itself how much it drafts'),
  ],
)
def test_invalid_arguments(args, message):
  _, drafter = _drafter('model')
  args = dict(drafter=drafter, depths=(0, 1, 3), ms=(1.0, 1.5, 2.0)) | args
  with pytest.raises(UserError, match=message):
    adaptive.adaptive_drafter(**args)


def test_drafters_whose_depth_cannot_be_chosen():
  _, drafter = _drafter('model')
  extra = dict(extra_tree=ExtraTree((-1,)))
  sends_extra = type('SendsExtra', (type(drafter),), extra)(**vars(drafter))
  by_branches = drafter.replace(tree=TokenTree((-1, 0, 1, 0)))
  # The tree of a drafter of two is that of both.
  of_two = ngram_or_model(ngram_drafter(3), drafter)
  for made, message in (
    (sends_extra, 'sends tokens alongside its draft'),
    (by_branches, r'parents \(-1, 0, 1, 0\), expected'),
    (of_two, 'chooses itself how much it drafts'),
  ):
    with pytest.raises(UserError, match=message):
      adaptive.adaptive_drafter(made, (0, 1, 3), (1.0, 1.5, 2.0))


def test_costs_are_means_of_the_fastest_third(monkeypatch):
  target, drafter = _drafter('model')
  request = _make(target, PROMPTS, _adaptive(drafter), 40)
  monkeypatch.setattr(Request, 'compile', lambda self: None)
  # Depth by depth, six turns.
  times = iter([9, 2, 90, 1, 9, 3, 9, 9, 9, 3, 9, 4, 9, 2, 2, 90, 9, 9])
  monkeypatch.setattr(depth_costs, '_ms_per_round', lambda _: next(times))
  assert depth_costs.measure(request, repeats=6).tolist() == [2, 2, 2.5]


def test_each_depth_is_timed_in_its_own_rounds():
  target, drafter = _drafter('model')
  request = _make(target, PROMPTS, _adaptive(drafter), 40)
  ms = depth_costs.measure(request, repeats=1)
  assert ms.shape == (3,) and ms.dtype == np.float32 and (ms > 0).all()
  parts = request.inputs.drafter.at_each_depth()
  for part, depth in zip(parts, (0, 1, 3), strict=True):
    state = request.with_drafter(part).decode(request.prefill(), rounds=8)
    is_drafted = np.asarray(state.stats.num_drafted_per_pos) > 0
    assert (is_drafted == (np.arange(3) < depth)[None]).all()
  plain = _make(target, PROMPTS, drafter, 40)
  with pytest.raises(UserError, match='got a request of a LanguageModelDraft'):
    depth_costs.measure(plain)


def test_a_request_reads_as_many_slots_as_an_engine():
  """So the cost of its rounds is that of the engine's."""
  target, drafter = _drafter('model')
  drafter = _adaptive(drafter)
  engine = specsamp.Engine(target, slots=3, drafter=drafter, max_length=50)
  engine.generate(PROMPTS, max_new_tokens=20)
  request = _make(target, PROMPTS, drafter, 20, max_length=50)
  shapes = lambda state: jax.tree.map(
    jnp.shape, (state.cache, state.drafter.drafter)
  )
  assert shapes(request.prefill()) == shapes(engine._batch._state)
  with pytest.raises(UserError, match='max_length: got 24, expected .* 25 to'):
    _make(target, PROMPTS, drafter, 20, max_length=24)


def test_compiling_runs_each_depth_and_its_catching_up(monkeypatch):
  """A part that runs for the first time must not be timed."""
  target, drafter = _drafter('model')
  ran = []
  decode = Request.decode

  def recorded(request, state, rounds):
    state = decode(request, state, rounds=rounds)
    ran.append((int(state.drafter.depth), int(state.drafter.behind)))
    return state

  monkeypatch.setattr(Request, 'decode', recorded)
  _make(target, PROMPTS, _adaptive(drafter), 40).compile()
  assert {depth for depth, _ in ran} == {0, 1, 3}
  # A round with a draft comes after a round without, which it reads.
  for before, (depth, behind) in zip(ran, ran[1:], strict=False):
    if depth:
      assert before == (0, 1) and behind == 0
