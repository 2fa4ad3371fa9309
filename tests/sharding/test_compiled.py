"""What the shards of a program send each other: read in what XLA compiled."""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from testing import elsewhere, shallow, tiny

from specsamp import SamplingParams
from specsamp.decoding.request import Request
from specsamp.decoding.state import with_axes
from specsamp.drafting import (
  DynamicTree,
  TokenTree,
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
)
from specsamp.drafting.trained import trained_drafter
from specsamp.planning.compile import messages
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.training import pretrain

pytestmark = pytest.mark.extended

# Sizes that nothing else has, so that a shape tells what it is of.
_VOCAB, _WIDTH, _HEAD = 16384, 40, 24
_SHAPE = dict(
  num_heads=8, num_kv_heads=8, width=_WIDTH, head_dim=_HEAD, mlp_width=56
)
_TREE = TokenTree.branching((2, 2))
_ROWS = 4
_meshes = pytest.mark.parametrize(
  'shape', [pytest.param((1, 8), marks=pytest.mark.slow), (2, 4)], ids=str
)

# Every kind of row in one batch: cuts, greedy, plain.
_SAMPLING = SamplingParams(
  temperature=[1.0, 0.0, 0.7, 1.0],
  top_k=[5, 0, 3, 0],
  top_p=[1.0, 1.0, 0.9, 0.5],
)
_SAMPLING_OF_ALL = SamplingParams(top_k=5, top_p=0.9)
_METHODS = {
  'chain': (2, 'iid', 'token', False),
  'iid tree': (_TREE, 'iid', 'multi_candidate', False),
  'tree': (_TREE, 'without_replacement', 'traversal', False),
  'deterministic tree': (_TREE, 'deterministic', 'naive', False),
  'coupled': (2, 'deterministic', 'gumbel', True),
}
_QUICK = ('tree', 'coupled')  # of which the latter is a chain


def _sent(text: str) -> list[tuple[str, tuple[int, ...]]]:
  """(kind, shape) of every array that a collective results in."""
  return [(kind, dims) for kind, arrays in messages(text) for _, dims in arrays]


def _pass_sums(sent) -> collections.Counter:
  """How many sums there are of activations [rows, tokens, width], by tokens."""
  return collections.Counter(
    shape[1]
    for kind, shape in sent
    if kind == 'all-reduce' and len(shape) == 3 and shape[2] == _WIDTH
  )


def _assert_little(sent, shape):
  """Nothing of a vocabulary's size, and no part of a cache, is sent."""
  assert sent
  for kind, dims in sent:
    # The blocks' sums of a draw are its square root.
    assert math.prod(dims) < _VOCAB // shape[1], (kind, dims)
    assert _HEAD not in dims, (kind, dims)


def _job(shape, method):
  drafted, law, verifier, coupled = _METHODS[method]
  target = tiny.model(_VOCAB, 0, **_SHAPE).on(meshes.make(*shape))
  return Request.make(
    target,
    [[1, 2, 3]] * _ROWS,
    model_drafter(tiny.first_layer(target), drafted, law, coupled),
    verifier,
    sampling=_SAMPLING,
    max_new_tokens=16,
    stop_tokens=[],
  )


def _abstract(shapes, shardings):
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    shardings,
  )


@pytest.mark.parametrize(
  ('shape', 'method'),
  [
    pytest.param(
      *((2, 4), method),
      marks=() if method in _QUICK else pytest.mark.slow,
    )
    for method in _METHODS
  ]
  + [pytest.param((1, 8), 'tree', marks=pytest.mark.slow)],
  ids=str,
)
def test_a_round_sends_activations_and_little_else(shape, method):
  job = _job(shape, method)
  mesh = job.model.mesh
  with meshes.use(mesh):
    state = job.programs.prefill.eval_shape(job.inputs, job.prompts)
    state = _abstract(state, with_axes(state, rules.sharding(mesh)))
    lowered = job.programs.decode.lower(job.inputs, state, np.int32(9))
    sent = _sent(lowered.compile().as_text())
  # Two sums a layer and one for the embedding in each pass: of the draft, of
  # one layer, over two tokens and then one by one or level by level; of the
  # target, of two layers, over the draft.
  tree = job.inputs.drafter.tree
  expected = collections.Counter({2: 3})
  if tree.is_chain:
    expected[1] += 3
  for depth in range(1, 1 if tree.is_chain else tree.depth):
    expected[tree.depths.count(depth)] += 3
  expected[tree.size] += 5
  assert _pass_sums(sent) == expected
  _assert_little([s for s in sent if s[1][2:] != (_WIDTH,)], shape)


def _embedded(kind):
  """A drafter of the embedded target's, and a verifier for it."""
  pair = shallow.pair()
  tree = TokenTree.branching((4, 2, 1))
  branches = TokenTree.branching((3, 1, 1))
  match kind:
    case 'ngram':
      drafter, verifier = ngram_drafter(branches), 'naive'
    case 'lookahead':
      drafter, verifier = lookahead_drafter(branches, 4), 'naive'
    case 'model':
      drafter, verifier = model_drafter(pair.draft, 4), 'block'
    case 'model, tree':
      drafter = model_drafter(pair.draft, tree, 'without_replacement')
      verifier = 'multi_candidate'
    case 'eagle, dynamic' | 'medusa, dynamic':
      drafter = trained_drafter(
        pair.drafters[kind.split(',')[0]],
        pair.target,
        DynamicTree.of(12, 3, 4),
        'deterministic',
      )
      verifier = 'naive'
    case _:
      drafter = trained_drafter(
        pair.drafters[kind], pair.target, tree, 'without_replacement'
      )
      verifier = 'multi_candidate'
  return pair.target, drafter, verifier


_KINDS = (
  'eagle_parallel', 'eagle_parallel_deep', 'hydra', 'medusa',
  'medusa_parallel', 'ngram', 'medusa, dynamic',
)  # fmt: skip


@pytest.mark.parametrize(
  ('kind', 'batch'),
  [
    # One row does not divide into the mesh's axis of data.
    ('model, tree', 1),
    ('eagle', 1),
    ('lookahead', 1),
    ('eagle, dynamic', 1),
    *(
      pytest.param(kind, batch, marks=pytest.mark.slow)
      for kind in ('model', 'model, tree', 'eagle', 'lookahead', *_KINDS)
      for batch in (1, 8)
      if (kind, batch) not in (('eagle', 1), ('lookahead', 1))
      and (kind, batch) != ('model, tree', 1)
    ),
  ],
)
def test_an_embedded_round_sends_nothing_of_a_vocabulary(kind, batch):
  target, drafter, verifier = _embedded(kind)
  job = Request.make(
    target, [[1, 2, 3]] * batch, drafter, verifier, sampling=_SAMPLING_OF_ALL,
    max_new_tokens=64, stop_tokens=[],
  )  # fmt: skip
  lowered, _ = elsewhere.lower_decode(job, meshes.make(2, 4))
  sent = _sent(lowered.compile().as_text())
  width, vocab = target.config.width, target.config.vocab_size
  assert max(math.prod(dims) for _, dims in sent) * 4 < 1e6
  for _, dims in sent:
    # Less than a shard of one row's probabilities, activations apart.
    assert not {vocab, vocab // 4} & set(dims), dims
    few = math.prod(dims) < batch * vocab // 4
    assert few or dims[-1] in (width, width // 2), dims


@_meshes
def test_a_prefill_sends_activations_alone(shape):
  job = _job(shape, 'chain')
  with meshes.use(job.model.mesh):
    lowered = job.programs.prefill.lower(job.inputs, job.prompts)
    sent = _sent(lowered.compile().as_text())
  # Of the last layers, target's and draft's, keys and values alone are wanted.
  length = job.prompts.tokens.shape[1]
  assert _pass_sums(sent) == {length: 3 + 1}
  assert len(sent) == 4


@_meshes
def test_a_step_of_training_gathers_no_vocabulary(shape):
  mesh = meshes.make(*shape)
  model = tiny.model(_VOCAB, 0, **_SHAPE)
  loss = pretrain.make_loss(model.transformer, model, 0.5)
  tx = optax.adamw(1e-3)
  state = (model.params, jax.eval_shape(tx.init, model.params))
  shardings = rules.param_shardings(state, mesh)
  length = 16
  tokens = jax.ShapeDtypeStruct(
    (_ROWS, length + 1),
    jnp.int32,
    sharding=NamedSharding(mesh, PartitionSpec(rules.DATA)),
  )

  def step(state, teacher, tokens):
    params, optimizer = state
    grads, metrics = jax.grad(loss, has_aux=True)(
      params, teacher, {'tokens': tokens}
    )
    updates, optimizer = tx.update(grads, optimizer, params)
    return (optax.apply_updates(params, updates), optimizer), metrics

  with meshes.use(mesh), jax.numpy_dtype_promotion('standard'):
    lowered = jax.jit(step, out_shardings=(shardings, None)).lower(
      _abstract(state, shardings),
      _abstract(model.params, shardings[0]),
      tokens,
    )
    sent = _sent(lowered.compile().as_text())
  assert {kind for kind, _ in sent} == {'all-reduce'}
  rows = _ROWS // shape[0]
  # Forward as in decoding, for the model and its teacher; backward two a layer
  # and one for the logits, where a layer's q and kv are summed apart.
  assert sent.count(('all-reduce', (rows, length, _WIDTH))) == 2 * 5 + 2 * 3 + 1
  # Gradients are summed over the data; logits and p are never sent.
  for _, dims in sent:
    assert _VOCAB not in dims
    if _VOCAB // shape[1] in dims:
      assert shape[0] > 1 and sorted(dims) == [_WIDTH, _VOCAB // shape[1]]


def test_a_gather_would_be_seen():
  """What the tests above look for is there where it should be."""
  mesh = meshes.make(2, 4)
  put = rules.sharding(mesh)
  logits = jax.ShapeDtypeStruct((_ROWS, 3, _VOCAB), jnp.float32)
  logits = _abstract(logits, put(logits, 'batch', None, 'vocab'))
  program = jax.jit(lambda x: jax.lax.top_k(x, 2)).lower(logits).compile()
  sent = _sent(program.as_text())
  assert ('all-gather', (_ROWS // 2, 3, _VOCAB)) in sent
  with pytest.raises(AssertionError):
    _assert_little(sent, (2, 4))
