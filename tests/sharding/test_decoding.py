"""A mesh changes where things are computed and nothing else."""

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
_TREE = TokenTree.branching((2, 2, 1))
# Texts, where both axes are split, are of these logits too; chains are among
# the drafters below.
_QUICK = [((1, 8), 1)]
_QUICK_TEXTS = [('tree', (2, 4), 1)]


def _pair(kv_heads: int, **config):
  config = dict(
    num_heads=8, num_kv_heads=kv_heads, width=32, mlp_width=32, **config
  )
  target = tiny.model(_VOCAB, seed=0, **config)
  return target, tiny.first_layer(target)


@pytest.mark.extended
@pytest.mark.parametrize(
  ('shape', 'kv_heads'),
  [
    pytest.param(
      *case,
      marks=() if case in _QUICK else pytest.mark.slow,
      id='-'.join(map(str, case)),
    )
    for case in itertools.product(_MESHES, _KV_HEADS)
  ],
)
def test_logits_are_the_unsharded_ones(shape, kv_heads):
  target, _ = _pair(kv_heads)
  params = target.transformer.init_params(jax.random.key(0))
  alone = dataclasses.replace(target, params=params)
  tokens = np.random.default_rng(0).integers(0, _VOCAB, (8, 16), np.int32)

  @jax.jit
  def two_passes(params):
    cache = target.transformer.init_cache(params, 8, 32)
    apply = lambda *args: target.transformer.apply({'params': params}, *args)
    first = apply(tokens, None, cache)
    at = np.full((8, 1), 16, np.int32) + np.arange(3, dtype=np.int32)[None]
    return first.logits, apply(tokens[:, :3], at, first.cache).logits

  expected = two_passes(alone.params)
  mesh = meshes.make(*shape)
  with meshes.use(mesh):
    got = two_passes(alone.on(mesh).params)
  for a, b in zip(got, expected, strict=True):
    assert np.abs(b).max() > 1
    np.testing.assert_allclose(a, b, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
  ('kind', 'shape', 'kv_heads'),
  [
    pytest.param(
      *case,
      marks=() if case in _QUICK_TEXTS else pytest.mark.slow,
      id='-'.join(map(str, case)),
    )
    for case in itertools.product(['chain', 'tree'], _MESHES, _KV_HEADS)
  ],
)
def test_sampled_tokens_are_the_unsharded_ones(kind, shape, kv_heads):
  def drafter(target, draft):
    if kind == 'chain':
      return model_drafter(draft, 3)
    return model_drafter(draft, _TREE, 'without_replacement')

  verifier = 'block' if kind == 'chain' else 'traversal'
  _check_sampled(*_pair(kv_heads), meshes.make(*shape), drafter, verifier)


def _check_sampled(target, draft, mesh, drafter, verifier, hottest=1.0):
  """Tokens, rounds and counts on the mesh are those on one device.

  Args:
    target: on one device, as is the draft model.
    draft: of `drafter`.
    mesh: to compare with.
    drafter: (target, draft) -> what drafts.
    verifier: its verifier.
    hottest: temperature of a row.
  """
  # Three rows: with two or eight shards of the batch some have none.
  run = lambda target, draft: specsamp.generate(
    target,
    ['abc', 'the', 'zxywvutsr'],
    drafter=drafter(target, draft),
    verifier=verifier,
    sampling=specsamp.SamplingParams(
      temperature=[hottest, 0.0, 0.7],
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


@pytest.mark.extended
@pytest.mark.parametrize(
  ('kind', 'tree', 'law', 'verifier'),
  [
    ('eagle_parallel', TokenTree.chain(3), 'iid', 'token'),
    ('dflash', TokenTree.chain(3), 'iid', 'token'),
    pytest.param(
      'eagle3',
      _TREE,
      'without_replacement',
      'multi_candidate',
      marks=pytest.mark.slow,
    ),
    pytest.param(
      'eagle',
      _TREE,
      'without_replacement',
      'multi_candidate',
      marks=pytest.mark.slow,
    ),
    pytest.param(
      'medusa', TokenTree.chain(3), 'iid', 'token', marks=pytest.mark.slow
    ),
  ],
)
def test_trained_drafters_emit_the_unsharded_tokens(kind, tree, law, verifier):
  """Their layer is laid on the target's mesh, and reads its embedding there."""
  target, _ = _pair(2, num_layers=6 if kind == 'eagle3' else 2)
  make = tiny.published if kind in ('eagle3', 'medusa') else tiny.trained
  trained = make(target, kind)
  drafter = lambda target, _: trained_drafter(trained, target, tree, law)
  mesh = meshes.make(2, 4)
  laid = trained_drafter(trained, target.on(mesh), tree, law)
  assert meshes.of(laid.params) == meshes.of(laid.target_head.params) == mesh
  # A random one guesses nothing unless almost every token will do.
  _check_sampled(target, target, mesh, drafter, verifier, hottest=30.0)


@pytest.mark.extended
@pytest.mark.parametrize(
  'name',
  [
    pytest.param('ngram', marks=pytest.mark.slow),  # a part of the last one
    'lookahead',
    'ngram_or_model',
  ],
)
def test_drafters_that_look_up_emit_the_unsharded_tokens(name):
  """A text for each of three rows, where the mesh has four."""
  target = tiny.model(26, seed=0, num_heads=4, num_kv_heads=2)
  rng = np.random.default_rng(1)
  texts = [rng.integers(26, size=size) for size in (40, 9, 60, 200)]
  ngram = lambda shape: ngram_drafter(
    shape, n_max=2, reference=texts[:3], datastore=texts[3:]
  )
  drafter = {
    'ngram': lambda *_: ngram(TokenTree.branching((2, 1, 1))),
    'lookahead': lambda *_: lookahead_drafter(
      TokenTree.branching((2, 1, 1)), window=2
    ),
    'ngram_or_model': lambda _, draft: ngram_or_model(
      ngram(3), model_drafter(draft, 3)
    ),
  }[name]
  verifier = 'token' if name == 'ngram_or_model' else 'naive'
  mesh = meshes.make(2, 2, jax.devices()[:4])
  _check_sampled(target, tiny.first_layer(target), mesh, drafter, verifier)


def test_a_match_that_ends_with_its_document():
  """What would follow is no token, of which a split embedding has NaN."""
  target = tiny.model(26, seed=0, num_heads=4, num_kv_heads=2)
  drafter = ngram_drafter(4, datastore=[[5, 6, 7]])
  emitted = [
    specsamp.generate(
      model,
      [[3, 5, 6]],
      drafter=drafter,
      verifier='naive',
      max_new_tokens=8,
      stop_tokens=[],
    ).tokens  # fmt: skip
    for model in (target, target.on(meshes.make(1, 2, jax.devices()[:2])))
  ]
  assert emitted[0] == emitted[1]


def test_nothing_is_compiled_after_the_prompt_pass(monkeypatch):
  """On a mesh too a first call compiles ahead, a program each."""
  target = tiny.model(26, seed=0, num_heads=4, num_kv_heads=2)
  mesh = meshes.make(2, 2, jax.devices()[:4])
  drafter = model_drafter(tiny.first_layer(target).on(mesh), 3)
  seen, real = [], Request.prefill

  def prefill(self):
    seen.append(len(compilations))
    return real(self)

  monkeypatch.setattr(Request, 'prefill', prefill)
  with compilation_cache.compilations() as compilations:
    # A size of batch that no other test has.
    out = specsamp.generate(
      target.on(mesh), [[3]] * 10, drafter=drafter, max_new_tokens=3
    )
  assert out.compile_seconds > 0
  assert seen == [len(compilations)] and seen[0] >= 2


@pytest.mark.extended
def test_dynamic_trees_are_the_unsharded_ones():
  drafter = lambda _, draft: model_drafter(
    draft, DynamicTree.of(8, 3, 4), 'deterministic'
  )
  mesh = meshes.make(2, 4)
  _check_sampled(*_pair(2), mesh, drafter, 'naive', hottest=30.0)


@pytest.mark.extended
def test_chosen_depths_are_the_unsharded_ones():
  """Of three rows; the fourth of the mesh is done before it begins."""
  target = tiny.model(26, seed=0, num_heads=4, num_kv_heads=2)
  drafter = lambda _, draft: adaptive_drafter(
    model_drafter(draft, 3), (0, 3), (1.0, 1.5), 0.1
  )
  mesh = meshes.make(2, 2, jax.devices()[:4])
  _check_sampled(target, tiny.first_layer(target), mesh, drafter, 'token')


def test_a_fingerprint_is_the_same_on_a_mesh():
  target, _ = _pair(2)
  for shape in ((2, 4), (1, 8)):
    assert target.on(meshes.make(*shape)).fingerprint == target.fingerprint
  # Of every parameter it reads something.
  leaves, structure = jax.tree.flatten(target.params)
  seen = {target.fingerprint}
  for i, leaf in enumerate(leaves):
    first = (0,) * leaf.ndim
    other = [*leaves[:i], leaf.at[first].add(1.0), *leaves[i + 1 :]]
    params = jax.tree.unflatten(structure, other)
    seen.add(dataclasses.replace(target, params=params).fingerprint)
  assert len(seen) == len(leaves) + 1


@pytest.mark.parametrize(
  'shape',
  [(2, 4), pytest.param((8, 1), marks=pytest.mark.slow)],
  ids=['2x4', '8x1'],
)
def test_an_engine_on_a_mesh_is_one_without(shape):
  """Texts, log-probabilities, and no row of a cache that is sent about."""
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
    found = engine.generate(
      prompts,
      max_new_tokens=[12, 9, 14, 5, 17, 20, 3, 9, 11],
      seed=3,
      sampling=specsamp.SamplingParams(
        temperature=np.linspace(0, 1, len(prompts)), top_p=0.9
      ),
    )
    return engine, found

  target, draft = _pair(2)
  _, expected = run(target, draft)
  mesh = meshes.make(*shape)
  engine, got = run(target.on(mesh), draft.on(mesh))
  for one, other in zip(got, expected, strict=True):
    assert one.tokens == other.tokens
    for name in ('logprobs', 'prompt_logprobs'):
      for a, b in zip(
        jax.tree.leaves(getattr(one, name)),
        jax.tree.leaves(getattr(other, name)),
        strict=True,
      ):
        # A low temperature multiplies what logits are off by.
        np.testing.assert_allclose(a, b, atol=1e-4)
  batch = engine._batch
  row = batch.prefill(batch.one_prompt(_prompt(), 0))
  zero = np.int32(0)
  with meshes.use(mesh):
    insert = batch._programs.insert.lower(batch._state, row, *[zero] * 3)
  text = insert.compile().as_text()
  for kind in ('all-gather', 'all-to-all', 'collective-permute', 'all-reduce'):
    assert kind not in text


def _prompt():
  one = np.ones((1,), np.int32)
  return Prompts(np.zeros((1, 32), np.int32), one, 2 * one, one)


def test_an_engines_slots_divide_into_shards():
  target, _ = _pair(2)
  with pytest.raises(specsamp.UserError, match=r'slots: got 3.* multiple of 2'):
    specsamp.Engine(target.on(meshes.make(2, 4)), slots=3)
