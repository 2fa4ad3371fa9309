"""Number of compilations, and copies that a round must not make."""

import collections
import weakref

import jax
import numpy as np
import pytest
from testing import elsewhere, tiny

import specsamp
from specsamp import SamplingParams
from specsamp.decoding import programs
from specsamp.decoding.generate import complete
from specsamp.decoding.request import Request
from specsamp.drafting import (
  DynamicTree,
  TokenTree,
  adaptive_drafter,
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.lookahead import LookaheadDrafter
from specsamp.drafting.trained import trained_drafter

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1], [8, 2, 8, 1, 8], [5, 5]]
TREE = TokenTree.branching((2, 2))
ROWS = dict(
  temperature=np.array([1.0, 0.7, 1.5, 1.0, 0.0]),
  top_k=np.array([0, 5, 0, 2, 0]),
  top_p=np.array([1.0, 1.0, 0.9, 1.0, 0.5]),
  min_p=np.array([0.0, 0.1, 0.0, 0.0, 0.0]),
)
CALLS = {
  'other prompts': dict(prompts=[[1] * 12, [2], [3], [4, 5], [6] * 7]),
  'greedy': dict(sampling=SamplingParams(temperature=0.0)),
  'top-k': dict(sampling=SamplingParams(top_k=3)),
  'values of each row': dict(sampling=SamplingParams(**ROWS)),
  'seeds of each row': dict(seed=[5, 4, 3, 2, 1]),
  'budgets of each row': dict(max_new_tokens=[1, 20, 3, 4, 5]),
  'stop tokens': dict(stop_tokens=[1, 2, 3]),
}


def _sizes():
  """Returns the number of compiled programs of each kind."""
  return [
    sum(program._cache_size() for program in kind)
    for kind in zip(
      *((pair.prefill, pair.decode) for pair in programs._kept.values()),
      strict=True,
    )
  ]


def _generate(pair, call=specsamp.generate, **args):
  args = {'prompts': PROMPTS, 'max_new_tokens': 16, **args}
  return call(pair[0], drafter=model_drafter(pair[1], 3), **args)


def _stream(pair, **args):
  list(_generate(pair, specsamp.stream, **args))


def test_other_costs_compile_nothing(pair):
  drafter = model_drafter(pair[1], 3)
  drafters = (
    adaptive_drafter(drafter, (0, 1, 3), ms)
    for ms in ((1.0, 1.5, 2.0), (1.0, 9.0, 9.0))
  )
  one, other = (
    Request.make(pair[0], PROMPTS, drafter, max_new_tokens=9).program_key
    for drafter in drafters
  )
  assert one == other


@pytest.mark.parametrize('call', [_generate, _stream])
def test_nothing_compiles_twice(pair, call, compilations):
  _generate(pair)  # a stream of rounds runs the same programs
  before, _ = _sizes(), compilations.clear()
  for name, args in CALLS.items():
    call(pair, **args)
    assert not compilations, name
    assert _sizes() == before, name


def test_the_count_of_compilations_counts(pair, compilations):
  jax.jit(lambda x: x + 1)(np.float32(1)).block_until_ready()
  assert len(compilations) == 1
  before = _sizes()
  # A size of batch that no other test has.
  specsamp.generate(pair[0], PROMPTS + PROMPTS[:2], max_new_tokens=2)
  assert np.subtract(_sizes(), before).tolist() == [1, 1]


@pytest.fixture(
  scope='module',
  params=[
    ('model', 1, 3),
    ('model', 4, TREE),
    ('eagle', 4, 3),
    ('adaptive', 1, 3),
    *(
      pytest.param(case, marks=pytest.mark.extended)
      for case in (
        ('lookahead', 4, 2),
        ('ngram or model', 1, 3),
        ('dynamic', 4, DynamicTree.of(9, 3, 3)),
      )
    ),
  ],
  ids=lambda param: f'{param[0]}, {param[1]} rows',
)
def large(request):
  """A request whose caches are far larger than everything else in a round."""
  shape = dict(max_length=512, head_dim=64, num_kv_heads=2)
  target = tiny.model(11, 0, num_layers=2, **shape)
  kind, batch, draft_shape = request.param
  draft = tiny.model(11, 1, num_layers=1, **shape)
  law = 'deterministic' if kind == 'dynamic' else 'without_replacement'
  match kind:
    case 'model' | 'dynamic':
      drafter = model_drafter(draft, draft_shape, law)
    case 'lookahead':
      drafter = lookahead_drafter(draft_shape, 2)
    case 'ngram or model':
      drafter = ngram_or_model(
        ngram_drafter(draft_shape), model_drafter(draft, draft_shape)
      )
    case 'adaptive':
      drafter = model_drafter(draft, draft_shape)
      drafter = adaptive_drafter(drafter, (0, 1, 3), (1.0, 1.5, 2.0), 0.2)
    case 'eagle':
      trained = tiny.trained(target, kind)
      drafter = trained_drafter(trained, target, draft_shape, law)
  made = Request.make(
    target, [[1, 2, 3]] * batch, drafter, max_new_tokens=500, stop_tokens=[]
  )
  state = made.prefill()
  lowered = made.programs.decode.lower(made.inputs, state, np.int32(9))
  return made, state, lowered.compile()


@pytest.mark.integration
def test_a_round_copies_no_cache(large):
  """All temporaries together are smaller than the keys of one layer.

  So XLA never holds an array of keys or values twice, under whatever name. Most
  temporaries are attention scores: heads x T x S, where a layer's keys are
  kv heads x head_dim x S.
  """
  _, state, program = large
  shapes = {array.shape for array in elsewhere.caches(state)}
  text = program.as_text()
  for shape in shapes:
    assert shape[2] > 512
    assert 'f32[' + ','.join(map(str, shape)) + ']' in text
  assert not elsewhere.copies(text, shapes)
  memory = program.memory_analysis()
  assert memory.temp_size_in_bytes < state.cache.keys[0].nbytes


@pytest.mark.integration
def test_the_state_is_donated(large):
  made, state, program = large
  caches = elsewhere.caches(state)
  has_model = not isinstance(made.inputs.drafter, LookaheadDrafter)
  assert len(caches) == 2 * (2 + has_model)
  memory = program.memory_analysis()
  assert memory.alias_size_in_bytes >= sum(leaf.nbytes for leaf in caches)
  # A run keeps the buffers that it is given.
  before = made.prefill()
  buffers = [x.unsafe_buffer_pointer() for x in elsewhere.caches(before)]
  after = program(made.inputs, before, np.int32(500))
  for leaf in jax.tree.leaves((before.cache, before.drafter)):
    assert leaf.is_deleted()
  assert buffers == [x.unsafe_buffer_pointer() for x in elsewhere.caches(after)]


def test_sizes_of_batches_share_programs(pair):
  drafter, prompts = model_drafter(pair[1], 3), PROMPTS * 2
  ten, nine = (
    Request.make(pair[0], prompts[:size], drafter, max_new_tokens=16)
    for size in (10, 9)
  )
  assert ten.programs is nine.programs
  shapes = lambda made: jax.tree.map(
    lambda x: (x.shape, x.dtype), (made.inputs, made.prompts)
  )
  assert shapes(ten) == shapes(nine)


@pytest.mark.parametrize('kind', ['ngram', 'model'])
def test_widths_of_prompts_share_rounds(pair, kind, compilations, monkeypatch):
  """A program of rounds is large, and its memory maps are few."""
  monkeypatch.setattr(programs, '_kept', collections.OrderedDict())
  drafter = ngram_drafter(2) if kind == 'ngram' else model_drafter(pair[1], 2)
  narrow, wide = (
    Request.make(pair[0], [5] * size, drafter, max_new_tokens=40 - size)
    for size in (3, 33)
  )
  assert narrow.width < wide.width and narrow.programs is wide.programs
  complete(narrow)
  assert not wide.is_compiled
  compilations.clear()
  complete(wide)
  assert len(compilations) == 1  # prompts of another width


def test_the_least_recently_used_programs_are_evicted(pair, monkeypatch):
  """A request does not keep its programs. None is compiled here."""
  requests = []

  def use(size):
    requests.append(Request.make(pair[0], [[5]] * size, max_new_tokens=2))
    return weakref.ref(requests[-1].programs.decode)

  monkeypatch.setattr(programs, '_kept', collections.OrderedDict())
  monkeypatch.setattr(programs, '_MAX_KEPT', 2)
  first, second = use(1), use(2)
  assert use(1)() is first() is not None
  use(3)  # The second is the least recently used.
  assert first() is not None and second() is None
  # Memory maps may be scarce earlier: a compilation looks first.
  monkeypatch.setattr(programs, '_MAX_KEPT', 9)
  monkeypatch.setattr(programs, '_are_maps_scarce', lambda: True)
  monkeypatch.setattr(programs, '_MIN_KEPT', 1)
  third = use(2)
  assert len(programs._kept) == 3
  requests[-1].build()
  assert list(programs._kept.values()) == [requests[-1].programs]
  assert first() is None and third() is not None
