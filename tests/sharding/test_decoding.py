"""Decoding on a mesh gives the results of decoding on one device."""

import dataclasses
import itertools

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
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.trained import trained_drafter
from specsamp.sharding import mesh as meshes
from specsamp.utils import compilation_cache

_VOCAB = 256
_MESHES = [(1, 8), (2, 4), (8, 1)]
_KV_HEADS = [1, 2, 8]
_CHAIN, _TREE = TokenTree.chain(3), TokenTree.branching((2, 2, 1))


def _cases(quick, *axes):
  """Returns the product of all axes; all cases but the quick ones are slow."""
  return [
    pytest.param(
      *case,
      marks=() if case in quick else pytest.mark.slow,
      id='-'.join(map(str, case)),
    )
    for case in itertools.product(*axes)
  ]


def _pair(kv_heads: int, **config):
  """Returns a target for any mesh of eight devices, and a draft model."""
  config = dict(
    num_heads=8, num_kv_heads=kv_heads, width=32, mlp_width=32, **config
  )
  target = tiny.model(_VOCAB, seed=0, **config)
  return target, tiny.first_layer(target)


def _small():
  """Returns a target for a mesh of four devices, and the mesh."""
  target = tiny.model(26, seed=0, num_heads=4, num_kv_heads=2)
  return target, meshes.make(2, 2, jax.devices()[:4])


@pytest.mark.extended
@pytest.mark.parametrize(
  ('shape', 'kv_heads'), _cases([((1, 8), 1)], _MESHES, _KV_HEADS)
)
def test_logits(shape, kv_heads):
  target, _ = _pair(kv_heads)
  params = target.transformer.init_params(jax.random.key(0))
  target = dataclasses.replace(target, params=params)
  tokens = np.random.default_rng(0).integers(0, _VOCAB, (8, 16), np.int32)

  @jax.jit
  def two_passes(params):
    cache = target.transformer.init_cache(params, 8, 32)
    apply = lambda *args: target.transformer.apply({'params': params}, *args)
    first = apply(tokens, None, cache)
    at = np.full((8, 1), 16, np.int32) + np.arange(3, dtype=np.int32)[None]
    return first.logits, apply(tokens[:, :3], at, first.cache).logits

  expected = two_passes(target.params)
  mesh = meshes.make(*shape)
  with meshes.use(mesh):
    got = two_passes(target.on(mesh).params)
  for a, b in zip(got, expected, strict=True):
    assert np.abs(b).max() > 1
    np.testing.assert_allclose(a, b, atol=1e-5, rtol=0)


def _check_tokens(target, draft, mesh, drafter, verifier, temperature=1.0):
  """Compares tokens, rounds and counts on a mesh with those on one device.

  Args:
    target: on one device.
    draft: draft model, on one device.
    mesh: to compare with.
    drafter: (target, draft) -> the drafter.
    verifier: its verifier.
    temperature: of the first row.
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


@pytest.mark.parametrize(
  ('kind', 'shape', 'kv_heads'),
  _cases([('tree', (2, 4), 1)], ['chain', 'tree'], _MESHES, _KV_HEADS),
)
def test_draft_models(kind, shape, kv_heads):
  def drafter(target, draft):
    if kind == 'chain':
      return model_drafter(draft, 3)
    return model_drafter(draft, _TREE, 'without_replacement')

  verifier = 'block' if kind == 'chain' else 'traversal'
  _check_tokens(*_pair(kv_heads), meshes.make(*shape), drafter, verifier)


@pytest.mark.extended
@pytest.mark.parametrize(
  ('kind', 'tree'),
  [
    ('eagle_parallel', _CHAIN),
    ('dflash', _CHAIN),
    pytest.param('eagle3', _TREE, marks=pytest.mark.slow),
    pytest.param('eagle', _TREE, marks=pytest.mark.slow),
    pytest.param('medusa', _CHAIN, marks=pytest.mark.slow),
  ],
)
def test_trained_drafters(kind, tree):
  """Their layers are moved to the target's mesh, like their target head."""
  target, _ = _pair(2, num_layers=6 if kind == 'eagle3' else 2)
  make = tiny.published if kind in ('eagle3', 'medusa') else tiny.trained
  trained = make(target, kind)
  law, verifier = 'iid', 'token'
  if tree == _TREE:
    law, verifier = 'without_replacement', 'multi_candidate'
  drafter = lambda target, _: trained_drafter(trained, target, tree, law)
  mesh = meshes.make(2, 4)
  sharded = drafter(target.on(mesh), None)
  assert meshes.of(sharded.params) == meshes.of(sharded.target_head.params)
  assert meshes.of(sharded.params) == mesh
  # A random drafter guesses nothing unless almost every token is accepted.
  _check_tokens(target, target, mesh, drafter, verifier, temperature=30.0)


def _ngram(shape):
  """Returns a drafter with a reference for each of three rows."""
  rng = np.random.default_rng(1)
  documents = [rng.integers(26, size=size) for size in (40, 9, 60, 200)]
  return ngram_drafter(
    shape, n_max=2, reference=documents[:3], datastore=documents[3:]
  )


_BRANCHES = TokenTree.branching((2, 1, 1))
_OTHERS = {
  'ngram': (lambda _: _ngram(_BRANCHES), 'naive'),
  'lookahead': (lambda _: lookahead_drafter(_BRANCHES, window=2), 'naive'),
  'ngram_or_model': (
    lambda draft: ngram_or_model(_ngram(3), model_drafter(draft, 3)),
    'token',
  ),
  'dynamic tree': (
    lambda draft: model_drafter(
      draft, DynamicTree.of(8, 3, 4), 'deterministic'
    ),
    'naive',
  ),
  'adaptive depth': (
    lambda draft: adaptive_drafter(
      model_drafter(draft, 3), (0, 3), (1.0, 1.5), 0.1
    ),
    'token',
  ),
}


@pytest.mark.extended
@pytest.mark.parametrize(
  'name',
  [
    # 'ngram_or_model' contains it.
    pytest.param(name, marks=pytest.mark.slow if name == 'ngram' else ())
    for name in _OTHERS
  ],
)
def test_other_drafters(name):
  make, verifier = _OTHERS[name]
  target, mesh = _small()
  draft = tiny.first_layer(target)
  _check_tokens(target, draft, mesh, lambda _, draft: make(draft), verifier)


def test_a_match_that_ends_with_its_document():
  """The next entry is not a token; a split embedding would return NaN."""
  target, mesh = _small()
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
  target, mesh = _small()
  drafter = model_drafter(tiny.first_layer(target).on(mesh), 3)
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
  target, _ = _pair(2)
  for shape in ((2, 4), (1, 8)):
    assert target.on(meshes.make(*shape)).fingerprint == target.fingerprint
  # It depends on every parameter.
  leaves, structure = jax.tree.flatten(target.params)
  fingerprints = {target.fingerprint}
  for i, leaf in enumerate(leaves):
    first = (0,) * leaf.ndim
    changed = [*leaves[:i], leaf.at[first].add(1.0), *leaves[i + 1 :]]
    params = jax.tree.unflatten(structure, changed)
    fingerprints.add(dataclasses.replace(target, params=params).fingerprint)
  assert len(fingerprints) == len(leaves) + 1


@pytest.mark.parametrize(
  'shape',
  [(2, 4), pytest.param((8, 1), marks=pytest.mark.slow)],
  ids=['2x4', '8x1'],
)
def test_an_engine(shape):
  """Compares completions and log-probabilities; no row of a cache is sent."""
  prompts = ['abc', 'the', 'zxywvutsr', 'q', 'xyz', 'mno', 'pqr', 'st', 'u']

  def run(target, draft):
    engine = specsamp.Engine(
      target,
      slots=8,
      drafter=model_drafter(draft, _TREE, 'without_replacement'),
      verifier='traversal',
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

  target, draft = _pair(2)
  _, expected = run(target, draft)
  mesh = meshes.make(*shape)
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
  target, _ = _pair(2)
  with pytest.raises(specsamp.UserError, match=r'slots: got 3.* multiple of 2'):
    specsamp.Engine(target.on(meshes.make(2, 4)), slots=3)
