"""What must not be compiled again, and what a round must not copy."""

import collections
import weakref

import jax
import numpy as np
import pytest
from testing import elsewhere, tiny

import specsamp
from specsamp import SamplingParams
from specsamp.decoding import programs
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
from specsamp.drafting.ngram import NgramDrafter
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
  'the same': {},
  'other prompts': dict(prompts=[[1] * 12, [2], [3], [4, 5], [6] * 7]),
  'rows in another order': dict(prompts=PROMPTS[::-1]),
  'temperature': dict(sampling=SamplingParams(temperature=0.3)),
  'greedy': dict(sampling=SamplingParams(temperature=0.0)),
  'top-k': dict(sampling=SamplingParams(top_k=3)),
  'top-p': dict(sampling=SamplingParams(top_p=0.5)),
  'min-p': dict(sampling=SamplingParams(min_p=0.5)),
  'values of each row': dict(sampling=SamplingParams(**ROWS)),
  'seed': dict(seed=77),
  'seeds of each row': dict(seed=[5, 4, 3, 2, 1]),
  'budget': dict(max_new_tokens=3),
  'budgets of each row': dict(max_new_tokens=[1, 20, 3, 4, 5]),
  'stop tokens': dict(stop_tokens=[1, 2, 3]),
  'no stop token': dict(stop_tokens=[]),
  'lists for a tuple': dict(prompts=tuple(map(tuple, PROMPTS))),
}


def _sizes():
  """How many programs of each kind there are."""
  return [
    sum(program._cache_size() for program in kind)
    for kind in zip(
      *((each.prefill, each.decode) for each in programs._kept.values()),
      strict=True,
    )
  ]


def _generate(pair, **args):
  target, draft = pair
  args = {'prompts': PROMPTS, 'max_new_tokens': 16, **args}
  specsamp.generate(target, drafter=model_drafter(draft, 3), **args)


def _adaptive(pair, ms=(1.0, 1.5, 2.0), **args):
  target, draft = pair
  args = {'prompts': PROMPTS, 'max_new_tokens': 16, **args}
  drafter = adaptive_drafter(model_drafter(draft, 3), (0, 1, 3), ms)
  specsamp.generate(target, drafter=drafter, **args)


def test_other_costs_compile_nothing(pair, compilations):
  _adaptive(pair)
  compilations.clear()
  _adaptive(pair, ms=(1.0, 9.0, 9.0))
  assert not compilations


def _stream(pair, **args):
  target, draft = pair
  args = {'prompts': PROMPTS, 'max_new_tokens': 16, **args}
  list(specsamp.stream(target, drafter=model_drafter(draft, 3), **args))


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
    ('lookahead', 4, 2),
    ('ngram or model', 1, 3),
    ('adaptive', 1, 3),
    ('dynamic', 4, DynamicTree.of(9, 3, 3)),
    # Caches as of those above.
    *(
      pytest.param(case, marks=pytest.mark.slow)
      for case in (
        ('model', 4, 3),
        ('model', 1, TREE),
        ('eagle_parallel', 4, 3),
        ('dflash', 4, 3),
        ('adaptive eagle', 4, 3),
        ('dynamic eagle', 4, DynamicTree.of(9, 3, 3)),
        ('ngram', 1, TokenTree.branching((2, 1))),
      )
    ),
  ],
  ids=lambda param: (
    f'{param[0]}, {param[1]} rows'
    + (', tree' if isinstance(param[2], TokenTree) else '')
  ),
)
def large(request):
  """A job whose caches are far larger than everything else in a round."""
  shape = dict(max_length=512, head_dim=64, num_kv_heads=2)
  target = tiny.model(11, 0, num_layers=2, **shape)
  kind, batch, draft_shape = request.param
  draft = tiny.model(11, 1, num_layers=1, **shape)
  verifier = 'multi_candidate'
  match kind:
    case 'model':
      drafter = model_drafter(draft, draft_shape, 'without_replacement')
    case 'ngram':
      drafter, verifier = ngram_drafter(draft_shape), 'naive'
    case 'lookahead':
      drafter, verifier = lookahead_drafter(draft_shape, 2), 'naive'
    case 'ngram or model':
      drafter = ngram_or_model(
        ngram_drafter(draft_shape), model_drafter(draft, draft_shape)
      )
    case 'adaptive':
      drafter = model_drafter(draft, draft_shape)
    case 'dynamic':
      drafter = model_drafter(draft, draft_shape, 'deterministic')
    case _:
      law = 'without_replacement'
      if kind.startswith('dynamic'):
        law = 'deterministic'
      trained = tiny.trained(target, kind.split()[-1])
      drafter = trained_drafter(trained, target, draft_shape, law)
  if kind.startswith('dynamic'):
    verifier = 'naive'
  if kind.startswith('adaptive'):
    verifier = 'multi_candidate'
    drafter = adaptive_drafter(drafter, (0, 1, 3), (1.0, 1.5, 2.0), 0.2)
  job = Request.make(
    target,
    [[1, 2, 3]] * batch,
    drafter,
    verifier,
    None,
    500,
    0,
    [],
    tree_attention=True,
  )
  state = job.prefill()
  lowered = job.programs.decode.lower(job.inputs, state, np.int32(9))
  return job, state, lowered.compile()


@pytest.mark.integration
def test_a_round_copies_no_cache(large):
  _, state, program = large
  shapes = {array.shape for array in elsewhere.caches(state)}
  text = program.as_text()
  for shape in shapes:
    assert shape[2] > 512
    assert 'f32[' + ','.join(map(str, shape)) + ']' in text
  assert not elsewhere.copies(text, shapes)


@pytest.mark.integration
def test_a_round_makes_nothing_of_a_caches_size(large):
  """Temporaries together are smaller than the keys of one layer.

  So none of the arrays of keys or values is ever there twice, under
  whatever name XLA would do that. What is there are mostly attention scores:
  heads x T x S, where a layer's keys are kv heads x head_dim x S.
  """
  _, state, program = large
  memory = program.memory_analysis()
  assert memory.temp_size_in_bytes < state.cache.keys[0].nbytes


@pytest.mark.integration
def test_the_state_is_donated(large):
  job, state, program = large
  caches = elsewhere.caches(state)
  own = (
    0 if isinstance(job.inputs.drafter, NgramDrafter | LookaheadDrafter) else 1
  )
  assert len(caches) == 2 * (2 + own)
  memory = program.memory_analysis()
  assert memory.alias_size_in_bytes >= sum(leaf.nbytes for leaf in caches)
  # Not only on paper: a run takes the buffers it is given, and keeps them.
  given = job.prefill()
  before = [x.unsafe_buffer_pointer() for x in elsewhere.caches(given)]
  after = program(job.inputs, given, np.int32(500))
  for leaf in jax.tree.leaves((given.cache, given.drafter)):
    assert leaf.is_deleted()
  assert before == [x.unsafe_buffer_pointer() for x in elsewhere.caches(after)]


def test_sizes_of_batches_share_programs(pair):
  ten, nine = (
    Request.make(
      pair[0],
      (PROMPTS * 2)[:size],
      model_drafter(pair[1], 3),
      max_new_tokens=16,
    )
    for size in (10, 9)
  )
  assert ten.programs is nine.programs
  shapes = lambda job: jax.tree.map(
    lambda x: (x.shape, x.dtype), (job.inputs, job.prompts)
  )
  assert shapes(ten) == shapes(nine)


def test_programs_that_were_not_used_for_long_are_let_go(pair, monkeypatch):
  """They are compiled when they first run, which none does here."""

  def use(size):
    job = Request.make(pair[0], [[5]] * size, max_new_tokens=2)
    return weakref.ref(job.programs.decode)

  monkeypatch.setattr(programs, '_kept', collections.OrderedDict())
  monkeypatch.setattr(programs, '_MOST', 2)
  first, second = use(1), use(2)
  assert use(1)() is first() is not None
  use(3)
  # The second was not used for longest.
  rows = [types[0].shape[0] for *_, (_, types, _) in programs._kept]
  assert rows == [1, 3] and first() is not None and second() is None
  use(2)
  assert first() is None
  # However few there are, a process has memory maps for more.
  monkeypatch.setattr(programs, '_MOST', 9)
  monkeypatch.setattr(programs, '_is_full', lambda: True)
  monkeypatch.setattr(programs, '_LEAST', 1)
  use(1)
  assert len(programs._kept) == 1
