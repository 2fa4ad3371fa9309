"""Prompts that begin like a text in a slot have the output of other prompts."""

import dataclasses
import random
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from testing import tiny

from specsamp import Engine, SamplingParams, UserError
from specsamp.decoding.prefixes import HeldTexts, Prefix
from specsamp.drafting import (
  DynamicTree,
  TokenTree,
  adaptive_drafter,
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.language_model import LanguageModelDrafter
from specsamp.drafting.trained import trained_drafter
from specsamp.models import KVCache
from specsamp.sharding import mesh as meshes

LENGTH = 200  # buckets of 32, 64, 128 and 200
TREE = TokenTree.branching((2, 2))


@pytest.fixture(scope='module')
def longer():
  """(target, draft) with room for several turns."""
  target = tiny.model(11, 28, 256)
  return target, tiny.first_layer(target)


def _chat(engine, seed=0, n=1, turns=3):
  """Runs several chats in turns; some stop early, within drafts.

  Returns:
    (tokens, rounds, accepted tokens and log-probabilities) of each completion,
    and the number of reused tokens.
  """
  rng = random.Random(seed)
  words = lambda count: [rng.randrange(11) for _ in range(count)]
  system = words(40)
  chats = [system[: rng.choice([10, 40])] + words(20 + 3 * i) for i in range(4)]
  results, num_reused = {}, 0
  for turn in range(turns):
    ids = {}
    for i in rng.sample(range(4), 4):
      id_ = engine.submit(
        chats[i],
        n=n,
        max_new_tokens=rng.randrange(5, 18),
        seed=rng.randrange(1000),
        stop_tokens=[3, 7] if i % 2 else [],
        sampling=SamplingParams(temperature=(0, 1, 0.7, 1)[i]),
      )
      ids[id_] = i
    for chunk in engine.stream():
      num_reused += chunk.num_reused
      done = chunk.completion
      if done:
        results[turn, ids[done.id], done.index] = (
          done.tokens,
          int(done.stats.rounds),
          done.stats.num_accepted_per_pos.tolist(),
          [done.prompt_logprobs.raw[1:], done.logprobs.raw],
        )
        if not done.index:
          chats[ids[done.id]] = done.prompt + done.tokens + words(5)
  return results, num_reused


def _check_chats(target, drafter, verifier=None, slots=3, **options):
  """Compares chats with and without reuse; returns the reused tokens."""
  make = lambda **reuse: Engine(
    target,
    slots=slots,
    drafter=drafter,
    verifier=verifier,
    max_length=LENGTH,
    rounds=2,
    logprobs=1,
    prompt_logprobs=True,
    **reuse,
  )
  with make() as engine, make(reuse_prefixes=False) as other:
    results, num_reused = _chat(engine, **options)
    expected, none = _chat(other, **options)
  assert results.keys() == expected.keys() and not none
  for key, (*counts, logprobs) in results.items():
    assert tuple(counts) == expected[key][:-1], key
    for got, wanted in zip(logprobs, expected[key][-1], strict=True):
      np.testing.assert_allclose(got, wanted, atol=2e-4)
  return num_reused


def _drafters(target, draft):
  """Returns (drafter, verifier) by name."""
  chain = model_drafter(draft, 3)

  def trained(kind, shape=3, law='iid'):
    return trained_drafter(tiny.trained(target, kind), target, shape, law)

  def lazy(drafter):
    """Drafts nothing, so that the drafter falls behind."""
    adaptive = adaptive_drafter(drafter, (0, 1, 3), (1, 1.1, 1.5))
    return adaptive.at_each_choice()[0]

  races = model_drafter(draft, 3, 'deterministic', coupled=True)
  dynamic = DynamicTree.of(9, 3, 3)
  return {
    # A text ends with a draft that is accepted as a whole.
    'accepted': (model_drafter(target, 3), None),
    'tree': (model_drafter(draft, TREE, 'without_replacement'), 'traversal'),
    'dynamic': (model_drafter(draft, dynamic, 'deterministic'), 'naive'),
    # Any token has a match, so the model never runs.
    'ngram or model': (ngram_or_model(ngram_drafter(4), chain), None),
    'lookahead': (lookahead_drafter(2, 2), None),
    'medusa': (trained('medusa'), None),
    'hydra': (trained('hydra', TREE), None),
    'eagle': (trained('eagle', TREE), 'multi_candidate'),
    'eagle dynamic': (trained('eagle', dynamic, 'deterministic'), 'naive'),
    'eagle parallel': (trained('eagle_parallel', TREE), 'multi_candidate'),
    'medusa parallel': (trained('medusa_parallel'), None),
    'dflash': (trained('dflash'), None),
    'adaptive': (adaptive_drafter(chain, (0, 3), (1, 1.4)), None),
    'lazy chain': (lazy(chain), None),
    'lazy races': (lazy(races), 'gumbel'),
    'lazy eagle': (lazy(trained('eagle')), None),
    'lazy dflash': (lazy(trained('dflash')), None),
  }


def test_chats_are_those_without_reuse(longer):
  """Prefixes of unfinished and finished texts, and of evicted ones."""
  target, draft = longer
  num_reused = _check_chats(target, model_drafter(draft, 3), n=2)
  assert num_reused > 300


def _marked(mark, *names):
  return [pytest.param(name, marks=mark) for name in names]


@pytest.mark.integration
@pytest.mark.parametrize(
  'name',
  [
    *('accepted', 'eagle', 'ngram or model', 'lazy chain', 'lazy eagle'),
    *_marked(pytest.mark.extended, 'tree', 'dflash', 'medusa'),
    *_marked(pytest.mark.slow, 'dynamic', 'lookahead', 'hydra'),
    *_marked(pytest.mark.slow, 'eagle dynamic', 'eagle parallel'),
    *_marked(pytest.mark.slow, 'medusa parallel', 'lazy races', 'lazy dflash'),
  ],
)
def test_the_state_is_that_of_a_prefill(longer, name):
  target, draft = longer
  drafter, verifier = _drafters(target, draft)[name]
  _check_state(target, drafter, verifier)


@pytest.mark.parametrize('chunk', [1, 3, 64])
def test_the_rest_is_read_in_chunks(longer, chunk):
  target, draft = longer
  drafter, _ = _drafters(target, draft)['eagle']
  _check_state(target, drafter, None, chunk)


@pytest.mark.integration
def test_the_state_of_eagle3_is_that_of_a_prefill():
  target = tiny.model(11, 28, 256, num_layers=6)
  trained = tiny.trained(target, 'eagle3', draft_vocab=9)
  _check_state(target, trained_drafter(trained, target, 3), None)


def _check_state(target, drafter, verifier, chunk=3):
  """Compares what a round reads after a second turn.

  The rest is read in small chunks, as a wide one reads more of the prompt.
  """
  engine = Engine(
    target,
    slots=1,
    drafter=drafter,
    verifier=verifier,
    max_length=LENGTH,
    prefill_chunk=chunk,
  )
  batch, rng = engine._batch, random.Random(5)
  words = lambda count: [rng.randrange(11) for _ in range(count)]
  args = dict(max_new_tokens=20, stop_tokens=[], seed=4)
  first = engine.generate(words(110), **args)[0]
  turn = first.prompt + first.tokens + words(6)
  rows = batch.rows([turn], max_new_tokens=9)
  prompts = batch.one_prompt(rows.prompts, 0)
  prefix = batch.prefix_of(prompts)
  assert prefix.length == 110 + 20 - 1 - drafter.overlap
  row, fresh = batch.resume(prompts, prefix), batch.prefill(prompts)
  length = int(prompts.length[0])

  def read(node):
    if not isinstance(node, KVCache):
      return node
    entries = lambda array: array[:, :, : length - 1]
    return jax.tree.map(entries, (node.keys, node.values))

  def parts(state):
    state = state.replace(tokens=state.tokens[:, :length], keys=None)
    is_cache = lambda node: isinstance(node, KVCache)
    return jax.tree.map(read, state, is_leaf=is_cache)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4),
    parts(row),
    parts(fresh),
  )


@pytest.mark.integration
@pytest.mark.parametrize(
  'name', ['adaptive', *_marked(pytest.mark.slow, 'tree', 'eagle')]
)
def test_any_drafter_continues(longer, name):
  drafter, verifier = _drafters(*longer)[name]
  assert _check_chats(longer[0], drafter, verifier) > 300


@pytest.mark.integration
def test_a_single_slot_and_relative_positions():
  target = tiny.model(11, 28, 256, positions='relative')
  drafter = model_drafter(tiny.first_layer(target), 3)
  assert _check_chats(target, drafter, slots=1) > 50


def test_chats_from_several_threads(longer):
  """Their requests come in any order, and some are cancelled."""
  target, draft = longer
  rng = random.Random(3)
  system = [rng.randrange(11) for _ in range(70)]
  prompts = [
    system[: rng.choice([30, 70])] + [rng.randrange(11) for _ in range(i)]
    for i in range(2, 18)
  ]
  args = dict(max_new_tokens=12, stop_tokens=[])
  engine = Engine(
    target, slots=3, drafter=model_drafter(draft, 3), max_length=LENGTH
  )
  ids = {}

  def submit(numbers):
    for i in numbers:
      ids[engine.submit(prompts[i], seed=i, **args)] = i
      if i % 5 == 4:
        engine.cancel(max(ids))

  threads = [
    threading.Thread(target=submit, args=(range(k, 16, 4),)) for k in range(4)
  ]
  for thread in threads:
    thread.start()
  done, num_reused = {}, 0
  while len(done) < 16:
    for chunk in engine.step(0.1):
      num_reused += chunk.num_reused
      if chunk.completion:
        done[chunk.id] = chunk.completion
  for thread in threads:
    thread.join()
  assert num_reused > 200
  other = Engine(
    target,
    slots=3,
    drafter=model_drafter(draft, 3),
    max_length=LENGTH,
    reuse_prefixes=False,
  )
  expected = other.generate(prompts, seed=list(range(16)), **args)
  for id_, completion in done.items():
    wanted = expected[ids[id_]].tokens
    if completion.finish_reason == 'cancelled':
      wanted = wanted[: len(completion.tokens)]
    assert completion.tokens == wanted


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 9


def _two_turns(engine, change=lambda engine, first: None):
  """Returns the tokens and the reused tokens of a second turn."""
  first = engine.generate(PROMPT, max_new_tokens=9, stop_tokens=[])[0]
  change(engine, first)
  engine.submit([*PROMPT, *first.tokens, 7], max_new_tokens=9, stop_tokens=[])
  chunks = list(engine.stream())
  return chunks[-1].completion, sum(chunk.num_reused for chunk in chunks)


def test_the_rest_is_as_short_as_it_can_be(longer):
  target, draft = longer
  args = dict(slots=2, drafter=model_drafter(draft, 3), max_length=LENGTH)
  _, num_reused = _two_turns(Engine(target, **args))
  # The last token of the answer has no entry yet, and two are read again.
  assert num_reused == len(PROMPT) + 9 - 3
  # A rest that takes as many tokens as the prompt gains nothing.
  engine = Engine(target, **args)
  engine.generate(PROMPT, max_new_tokens=9, stop_tokens=[])
  engine.submit(PROMPT[:20] + [0] * 40, max_new_tokens=9)
  assert not any(chunk.num_reused for chunk in engine.stream())


def test_a_padded_rest_stays_within_the_cache(longer):
  target, draft = longer
  args = dict(slots=2, drafter=model_drafter(draft, 3), max_length=LENGTH)
  rng = random.Random(7)
  prompt = [rng.randrange(11) for _ in range(LENGTH - 10)]
  engine = Engine(target, **args)
  engine.generate(prompt[:140], max_new_tokens=4, stop_tokens=[])
  engine.submit(prompt, max_new_tokens=10, stop_tokens=[], seed=3)
  chunks = list(engine.stream())
  assert sum(chunk.num_reused for chunk in chunks) >= 140 - 2
  fresh = Engine(target, **args, reuse_prefixes=False)
  expected = fresh.generate(prompt, max_new_tokens=10, stop_tokens=[], seed=3)
  assert chunks[-1].completion.tokens == expected[0].tokens


def test_other_weights_have_other_caches(longer):
  target, draft = longer
  other = tiny.model(11, 29, 256)
  args = dict(slots=2, drafter=model_drafter(draft, 3), max_length=LENGTH)
  engine = Engine(target, **args)
  update = lambda engine, _: engine.update_params(target=other.params)
  turn, num_reused = _two_turns(engine, update)
  assert not num_reused
  fresh = Engine(other, **args).generate(
    turn.prompt, max_new_tokens=9, stop_tokens=[]
  )
  assert turn.tokens == fresh[0].tokens
  drafts = lambda engine, _: engine.update_params(drafter=draft.params)
  assert not _two_turns(Engine(target, **args), drafts)[1]
  closes = lambda engine, _: engine.compile()
  assert not _two_turns(Engine(target, **args), closes)[1]


def test_a_broken_text_is_not_continued(longer):
  target, _ = longer
  broken = _with_nan_after(target, 9)
  engine = Engine(broken, slots=1, max_length=LENGTH)
  healthy = [1, 2, 3, 4, 5] * 9
  fresh = engine.generate(healthy, max_new_tokens=4, stop_tokens=[9, 10])
  engine.submit([*healthy, 9, 1], max_new_tokens=4)
  assert [c.finish_reason for c in engine.results()] == ['nan']
  engine.submit([*healthy, 1], max_new_tokens=4, stop_tokens=[9, 10])
  chunks = list(engine.stream())
  assert not any(chunk.num_reused for chunk in chunks)
  assert chunks[-1].completion.finish_reason != 'nan'
  assert fresh[0].tokens


def _with_nan_after(target, first):
  """Returns a target with NaN logits after the tokens from `first` on."""
  params = dict(target.params)
  params['embedding'] = params['embedding'].at[first:].set(jnp.nan)
  params['head'] = target.params['embedding']
  transformer = target.transformer.clone(
    config=dataclasses.replace(target.config, tied_embeddings=False)
  )
  return dataclasses.replace(target, transformer=transformer, params=params)


def test_entries_after_a_prefix_may_be_broken(longer):
  """Unseen entries are multiplied by 0, which does not remove a NaN."""
  broken = _with_nan_after(longer[0], 9)
  shared = [1, 2, 3, 4, 5] * 12
  engine = Engine(broken, slots=2, max_length=LENGTH)
  ids = [
    engine.submit(prompt, max_new_tokens=4, stop_tokens=[9, 10])
    for prompt in ([*shared, *[1] * 20, 9, 1], [*shared, 2, 2, 2])
  ]
  reasons = {c.id: c.finish_reason for c in engine.results()}
  assert reasons[ids[0]] == 'nan' and reasons[ids[1]] != 'nan'
  engine = Engine(broken, slots=2, max_length=LENGTH, rounds=1)
  args = dict(stop_tokens=[9, 10])
  num_tried = 0
  for seed in range(60):
    # A row that ended with such a token reads it while the other row goes on.
    short = engine.submit(shared, max_new_tokens=12, seed=seed, **args)
    long = engine.submit([1, 2, 3], max_new_tokens=16, seed=seed, **args)
    done = {c.id: c for c in engine.results()}
    if done[short].finish_reason != 'stop' or (
      len(done[long].tokens) <= len(done[short].tokens) + 1
    ):
      continue
    num_tried += 1
    engine.submit([*shared, 3], max_new_tokens=2, seed=1, **args)
    chunks = list(engine.stream())
    assert chunks[0].num_reused == 58
    assert chunks[-1].completion.finish_reason != 'nan'
  assert num_tried


@struct.dataclass
class Replanned(LanguageModelDrafter):
  """A drafter whose state `resume` of its base may not fit."""

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    return super().init(tokens_bp, length_b, no_feature_b1f, capacity)


def test_a_drafter_may_not_continue(longer):
  target, draft = longer
  drafter = model_drafter(draft, 3)
  fields = {
    f.name: getattr(drafter, f.name) for f in dataclasses.fields(drafter)
  }
  cannot = Replanned(**fields)
  assert drafter.overlap == 2 and cannot.overlap is None
  args = dict(slots=2, max_length=LENGTH)
  turn, num_reused = _two_turns(Engine(target, drafter=cannot, **args))
  assert not num_reused
  assert (
    turn.tokens == _two_turns(Engine(target, drafter=drafter, **args))[0].tokens
  )


@pytest.mark.integration
@pytest.mark.parametrize(
  'shape', [None, pytest.param((2, 2), marks=pytest.mark.slow)]
)
def test_nothing_compiles_once_it_is_warm(compilations, shape):
  target = tiny.model(11, 28, 256, num_heads=4, num_kv_heads=2)
  draft = tiny.first_layer(target)
  if shape:
    mesh = meshes.make(*shape, jax.devices()[:4])
    target, draft = target.on(mesh), draft.on(mesh)
  args = dict(slots=4, drafter=model_drafter(draft, 3), max_length=LENGTH)
  args |= dict(rounds=2, logprobs=1, prompt_logprobs=True)
  engine = Engine(target, **args)
  engine.compile()
  assert compilations
  compilations.clear()
  results, num_reused = _chat(engine, n=2)
  assert num_reused > 300 and not compilations
  expected, _ = _chat(Engine(target, reuse_prefixes=False, **args), n=2)
  for key, values in results.items():
    assert values[:-1] == expected[key][:-1]


def test_bad_input(longer):
  with pytest.raises(
    UserError, match='reuse_prefixes: got 1, expected True or'
  ):
    Engine(longer[0], reuse_prefixes=1)


def _held(*texts):
  held = HeldTexts(len(texts))
  for slot, text in enumerate(texts):
    held.hold(slot, np.asarray([ord(x) for x in text], np.int32))
  return held


@pytest.mark.parametrize(
  ('texts', 'prompt', 'prefix'),
  [
    # The last token of a text has no entry.
    (('abc', 'xyz'), 'abcd', Prefix(0, 2)),
    (('xabc', 'abcx'), 'abcd', Prefix(1, 3)),
    (('', ''), 'ab', Prefix(0, 0)),
    (('b', ''), 'ab', Prefix(0, 0)),
  ],
)
def test_the_longest_prefix(texts, prompt, prefix):
  ids = np.asarray([ord(x) for x in prompt], np.int32)
  assert _held(*texts).longest(ids) == prefix


@pytest.mark.parametrize(
  ('texts', 'idle', 'prompt', 'slot'),
  [
    (('abc', 'abd', 'xyz'), [0, 1, 2], 'ab', 0),  # the least recently used
    (('abc', 'abd', 'xyz'), [1, 2], 'ab', 1),
    (('xyz', 'abc', 'ab'), [0, 1, 2], 'abcd', 1),  # its text is in the prompt
    (('xyz', 'abcfg', 'abce'), [0, 1, 2], 'abcd', 2),  # all but one token is
    (('xyz', 'abc', 'abce'), [0, 1], 'xyaw', 0),
  ],
)
def test_the_slot_that_a_prompt_takes(texts, idle, prompt, slot):
  ids = np.asarray([ord(x) for x in prompt], np.int32)
  assert _held(*texts).replaceable(idle, ids, num_lost=1) == slot
