"""Decoding on a mesh gives the results of decoding on one device."""

import dataclasses

import jax
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp.decoding.request import Request
from specsamp.decoding.state import Prompts
from specsamp.drafting import (
  DynamicTree,
  TokenTree,
  adaptive_drafter,
  adaptive_tree_drafter,
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.trained import trained_drafter
from specsamp.models import presets
from specsamp.sharding import mesh as meshes
from specsamp.utils import compilation_cache


def _pair(num_kv_heads=2, num_layers=2):
  """Returns a target, a draft model, and a mesh of four devices for both."""
  target = tiny.model(
    26, 0, num_heads=4, num_kv_heads=num_kv_heads, num_layers=num_layers
  )
  draft = tiny.first_layer(target)
  return target, draft, meshes.make(2, 2, jax.devices()[:4])


@pytest.mark.extended
@pytest.mark.parametrize('is_gemma', [False, True])
def test_logits(is_gemma):
  """Gemma's layers, and attention with fewer heads than devices."""
  target, _, mesh = _pair(num_kv_heads=1)
  if is_gemma:
    fields = dataclasses.asdict(presets.gemma3_1b())
    names = ('windows', 'window_rope_theta', 'qk_norm', 'output_norms')
    target = tiny.model(
      26,
      0,
      num_heads=1,
      num_layers=2,
      logit_cap=3.0,
      score_cap=2.0,
      **{name: fields[name] for name in names} | dict(windows=(3, 0)),
    )
  tokens = np.random.default_rng(0).integers(0, 26, (8, 16), np.int32)

  @jax.jit
  def two_passes(params):
    cache = target.transformer.init_cache(params, 8, 32)
    apply = lambda *args: target.transformer.apply({'params': params}, *args)
    first = apply(tokens, None, cache)
    at = np.full((8, 1), 16, np.int32) + np.arange(3, dtype=np.int32)[None]
    return first.logits, apply(tokens[:, :3], at, first.cache).logits

  expected = two_passes(target.params)
  with meshes.use(mesh):
    got = two_passes(target.on(mesh).params)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5),
    got,
    expected,
  )


def _check_tokens(target, draft, mesh, drafter, verifier, temperature=1.0):
  """Compares tokens, rounds and counts on a mesh with those on one device.

  `drafter` makes the drafter of (target, draft); `temperature` is that of the
  first row.
  """
  # Three rows: with more shards of the batch, some shards have no row.
  run = lambda target, draft: specsamp.generate(
    target,
    ['abc', 'the', 'zxywvutsr'],
    drafter=drafter(target, draft),
    verifier=verifier,
    sampling=specsamp.SamplingParams(
      temperature=[temperature, 0.0, 0.7],
      top_p=[0.9, 1.0, 1.0],
      top_k=[0, 0, 20],
    ),
    max_new_tokens=[12, 9, 14],
    seed=3,
  )
  expected = run(target, draft)
  got = run(target.on(mesh), draft.on(mesh))
  assert got.tokens == expected.tokens
  np.testing.assert_array_equal(got.rounds, expected.rounds)
  np.testing.assert_array_equal(
    got.num_accepted_per_pos, expected.num_accepted_per_pos
  )
  assert 0 < got.acceptance_rate < 1


def test_draft_models():
  """The shards of a model are more than the heads of the keys."""
  tree = TokenTree.branching((2, 1))
  make = lambda _, draft: model_drafter(draft, tree, 'without_replacement')
  _check_tokens(*_pair(num_kv_heads=1), make, 'multi_candidate')


def _ngram_or_model(_, draft):
  """Returns a drafter with a reference for each of three rows."""
  rng = np.random.default_rng(1)
  documents = [rng.integers(26, size=size) for size in (40, 9, 60, 200)]
  ngram = ngram_drafter(
    3, n_max=2, reference=documents[:3], datastore=documents[3:]
  )
  return ngram_or_model(ngram, model_drafter(draft, 3))


def _trained(make, kind, **fields):
  return lambda target, _: trained_drafter(
    make(target, kind, **fields), target, 3
  )


# Makes a drafter of (target, draft); its verifier; a temperature. A random
# trained drafter guesses nothing unless almost every token is accepted.
_OTHERS = {
  'lookahead': (
    lambda *_: lookahead_drafter(TokenTree.branching((2, 1, 1)), window=2),
    'naive',
    1.0,
  ),
  'ngram_or_model': (_ngram_or_model, 'token', 1.0),
  'dynamic': (
    lambda _, draft: model_drafter(
      draft, DynamicTree.of(8, 3, 4), 'deterministic'
    ),
    'naive',
    1.0,
  ),
  'adaptive': (
    lambda _, draft: adaptive_drafter(
      model_drafter(draft, 3), (0, 3), (1.0, 1.5), 0.1
    ),
    'token',
    1.0,
  ),
  'adaptive tree': (
    lambda _, draft: adaptive_tree_drafter(
      model_drafter(draft, DynamicTree.of(8, 3, 4), 'deterministic'),
      (2, 4, 8),
      (1.0, 1.4, 2.5),
    ),
    'naive',
    1.0,
  ),
  'eagle_parallel': (_trained(tiny.trained, 'eagle_parallel'), 'token', 30.0),
  'eagle of few tokens': (
    _trained(tiny.trained, 'eagle', draft_vocab=9),
    'token',
    30.0,
  ),
  'dflash': (_trained(tiny.trained, 'dflash'), 'token', 30.0),
  'dspark': (_trained(tiny.published, 'dspark'), 'token', 30.0),
  'treeflash': (_trained(tiny.trained, 'treeflash'), 'token', 30.0),
  'eagle3': (_trained(tiny.published, 'eagle3'), 'token', 30.0),
  'medusa': (_trained(tiny.published, 'medusa'), 'token', 30.0),
}


@pytest.mark.extended
@pytest.mark.parametrize('name', _OTHERS)
def test_other_drafters(name):
  make, verifier, temperature = _OTHERS[name]
  pair = _pair(num_layers=6 if name == 'eagle3' else 2)
  _check_tokens(*pair, make, verifier, temperature)


@pytest.mark.extended
def test_a_match_that_ends_with_its_document():
  """The next entry is not a token; a split embedding would return NaN."""
  target, _, mesh = _pair()
  emitted = [
    specsamp.generate(
      model,
      [[3, 5, 6]],
      drafter=ngram_drafter(4, datastore=[[5, 6, 7]]),
      verifier='naive',
      max_new_tokens=8,
      stop_tokens=[],
    ).tokens
    for model in (target, target.on(mesh))
  ]
  assert emitted[0] == emitted[1]


def test_all_programs_are_compiled_before_the_prefill(monkeypatch):
  target, draft, mesh = _pair()
  drafter = model_drafter(draft.on(mesh), 3)
  counts, real = [], Request.prefill

  def prefill(self):
    counts.append(len(compilations))
    return real(self)

  monkeypatch.setattr(Request, 'prefill', prefill)
  with compilation_cache.compilations() as compilations:
    # No other test has this batch size.
    out = specsamp.generate(
      target.on(mesh), [[3]] * 10, drafter=drafter, max_new_tokens=3
    )
  assert out.compile_seconds > 0
  assert counts == [len(compilations)] and counts[0] >= 2


def test_a_fingerprint():
  target, _, mesh = _pair()
  assert target.on(mesh).fingerprint == target.fingerprint
  # It depends on every parameter.
  leaves, structure = jax.tree.flatten(target.params)
  fingerprints = {target.fingerprint}
  for i, leaf in enumerate(leaves):
    first = (0,) * leaf.ndim
    changed = [*leaves[:i], leaf.at[first].add(1.0), *leaves[i + 1 :]]
    params = jax.tree.unflatten(structure, changed)
    fingerprints.add(dataclasses.replace(target, params=params).fingerprint)
  assert len(fingerprints) == len(leaves) + 1


def test_an_engine():
  """Compares completions and log-probabilities; no row of a cache is sent."""
  prompts = ['abc', 'the', 'zxywvutsr', 'q', 'xyz', 'mno', 'pqr', 'st', 'u']

  def run(target, draft):
    engine = specsamp.Engine(
      target,
      slots=8,
      drafter=model_drafter(draft, 2),
      rounds=3,
      logprobs=2,
      prompt_logprobs=True,
    )
    return engine, engine.generate(
      prompts,
      max_new_tokens=[12, 9, 14, 5, 17, 20, 3, 9, 11],
      seed=3,
      sampling=specsamp.SamplingParams(
        temperature=np.linspace(0, 1, len(prompts)), top_p=0.9
      ),
    )

  target, draft, mesh = _pair()
  _, expected = run(target, draft)
  engine, got = run(target.on(mesh), draft.on(mesh))
  for a, b in zip(got, expected, strict=True):
    assert a.tokens == b.tokens
    # A low temperature multiplies the error of logits.
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4),
      (a.logprobs, a.prompt_logprobs),
      (b.logprobs, b.prompt_logprobs),
    )
  batch = engine._batch
  one = np.ones((1,), np.int32)
  prompt = Prompts(np.zeros((1, 32), np.int32), one, 2 * one, one)
  row = batch.prefill(batch.one_prompt(prompt, 0))
  with meshes.use(mesh):
    insert = batch._programs.insert.lower(batch._state, row, *[np.int32(0)] * 3)
  text = insert.compile().as_text()
  for kind in ('all-gather', 'all-to-all', 'collective-permute', 'all-reduce'):
    assert kind not in text


def test_an_engines_slots_divide_into_shards():
  target, _, mesh = _pair()
  with pytest.raises(specsamp.UserError, match=r'slots: got 3.* multiple of 2'):
    specsamp.Engine(target.on(mesh), slots=3)


def _generate(max_length, draft_len):
  # Another limit of positions is another program, which computes the same.
  target = tiny.model(64, seed=0, max_length=max_length)
  draft = tiny.first_layer(target)
  return specsamp.generate(
    target,
    ['abc', 'a', 'zxyw'],
    drafter=model_drafter(draft, draft_len) if draft_len else None,
    sampling=specsamp.SamplingParams([1.0, 0.0, 0.7], top_k=[0, 0, 20]),
    max_new_tokens=[14, 12, 9],
    seed=7,
  )


@pytest.mark.extended
@pytest.mark.parametrize(
  ('draft_len', 'expected'), [(0, {'padded', 'apart'}), (3, {'both', 'apart'})]
)
def test_branches_of_accelerators(monkeypatch, draft_len, expected):
  """A CPU runs the branches that `lax.platform_dependent` has for TPUs."""
  on_cpu = _generate(64, draft_len)
  branches = set()

  def as_on_tpu(*args, default=None, tpu=None, **_):
    branch = tpu or default
    branches.add(getattr(branch, '__name__', ''))
    return branch(*args)

  monkeypatch.setattr(jax.lax, 'platform_dependent', as_on_tpu)
  got = _generate(61, draft_len)
  assert branches >= expected
  assert got.tokens == on_cpu.tokens
  for name in ('rounds', 'num_accepted_per_pos'):
    np.testing.assert_array_equal(getattr(got, name), getattr(on_cpu, name))
