"""Messages between the shards of a program, read from its compiled text."""

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

# All sizes differ, so that a shape identifies its array.
_VOCAB, _WIDTH, _HEAD = 16384, 40, 24
_SHAPE = dict(
  num_heads=8, num_kv_heads=8, width=_WIDTH, head_dim=_HEAD, mlp_width=56
)
_TREE = TokenTree.branching((2, 2))
_ROWS = 4
_slow = pytest.mark.slow
_meshes = pytest.mark.parametrize(
  'shape', [pytest.param((1, 8), marks=_slow), (2, 4)], ids=str
)

# One batch has every kind of row: top-k, top-p, greedy, plain.
_SAMPLING = SamplingParams(
  temperature=[1.0, 0.0, 0.7, 1.0],
  top_k=[5, 0, 3, 0],
  top_p=[1.0, 1.0, 0.9, 0.5],
)
_METHODS = {
  'chain': (2, 'iid', 'token', False),
  'iid tree': (_TREE, 'iid', 'multi_candidate', False),
  'tree': (_TREE, 'without_replacement', 'traversal', False),
  'deterministic tree': (_TREE, 'deterministic', 'naive', False),
  'coupled': (2, 'deterministic', 'gumbel', True),
}


def _sent(text: str) -> list[tuple[str, tuple[int, ...]]]:
  """Returns (kind, shape) of every result of a collective."""
  return [(kind, dims) for kind, arrays in messages(text) for _, dims in arrays]


def _num_sums(sent) -> collections.Counter:
  """Counts all-reduces of activations [rows, tokens, width], by tokens."""
  return collections.Counter(
    shape[1]
    for kind, shape in sent
    if kind == 'all-reduce' and len(shape) == 3 and shape[2] == _WIDTH
  )


def _assert_small(sent, shape):
  """Nothing as large as a vocabulary, and no part of a cache, is sent."""
  assert sent
  for kind, dims in sent:
    # A draw sends sums of blocks, the square root of the vocabulary.
    assert math.prod(dims) < _VOCAB // shape[1], (kind, dims)
    assert _HEAD not in dims, (kind, dims)


def _request(shape, method):
  shape_drafted, law, verifier, coupled = _METHODS[method]
  target = tiny.model(_VOCAB, 0, **_SHAPE).on(meshes.make(*shape))
  return Request.make(
    target,
    [[1, 2, 3]] * _ROWS,
    model_drafter(tiny.first_layer(target), shape_drafted, law, coupled),
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
    ((2, 4), 'tree'),
    ((2, 4), 'coupled'),
    pytest.param((2, 4), 'chain', marks=_slow),
    pytest.param((2, 4), 'iid tree', marks=_slow),
    pytest.param((2, 4), 'deterministic tree', marks=_slow),
    pytest.param((1, 8), 'tree', marks=_slow),
  ],
  ids=str,
)
def test_a_step_sends_activations_and_little_else(shape, method):
  request = _request(shape, method)
  mesh = request.model.mesh
  with meshes.use(mesh):
    state = request.programs.prefill.eval_shape(request.inputs, request.prompts)
    state = _abstract(state, with_axes(state, rules.sharding(mesh)))
    lowered = request.programs.decode.lower(request.inputs, state, np.int32(9))
    sent = _sent(lowered.compile().as_text())
  # Each pass has two sums per layer and one for the embedding. The draft model
  # has one layer and a first pass over two tokens, then over one each or over a
  # level. The target has two layers and a pass over the draft.
  tree = request.inputs.drafter.tree
  expected = collections.Counter({2: 3})
  if tree.is_chain:
    expected[1] += 3
  for depth in range(1, 1 if tree.is_chain else tree.depth):
    expected[tree.depths.count(depth)] += 3
  expected[tree.size] += 5
  assert _num_sums(sent) == expected
  _assert_small([s for s in sent if s[1][2:] != (_WIDTH,)], shape)


def _zoo_drafter(pair, kind):
  """Returns a drafter for the target of the zoo, and a verifier for it."""
  tree = TokenTree.branching((4, 2, 1))
  branches = TokenTree.branching((3, 1, 1))
  law, verifier = 'without_replacement', 'multi_candidate'
  if kind == 'ngram':
    return ngram_drafter(branches), 'naive'
  if kind == 'lookahead':
    return lookahead_drafter(branches, 4), 'naive'
  if kind == 'model':
    return model_drafter(pair.draft, 4), 'block'
  if kind == 'model, tree':
    return model_drafter(pair.draft, tree, law), verifier
  kind, _, dynamic = kind.partition(', ')
  if dynamic:
    tree, law, verifier = DynamicTree.of(12, 3, 4), 'deterministic', 'naive'
  drafter = trained_drafter(pair.drafters[kind], pair.target, tree, law)
  return drafter, verifier


_QUICK = ('model, tree', 'eagle', 'lookahead', 'eagle, dynamic')
_KINDS = (
  'model', 'eagle_parallel', 'eagle_parallel_deep', 'hydra', 'medusa',
  'medusa_parallel', 'ngram', 'medusa, dynamic',
)  # fmt: skip


@pytest.mark.parametrize(
  ('kind', 'batch'),
  [
    # One row does not divide into the mesh's axis of data.
    *((kind, 1) for kind in _QUICK),
    *(pytest.param(kind, 1, marks=_slow) for kind in _KINDS),
    *(pytest.param(kind, 8, marks=_slow) for kind in _QUICK[:3] + _KINDS),
  ],
)
def test_a_step_of_a_zoo_drafter_sends_nothing_of_a_vocabulary(kind, batch):
  pair = shallow.pair()
  request = Request.make(
    pair.target,
    [[1, 2, 3]] * batch,
    *_zoo_drafter(pair, kind),
    sampling=SamplingParams(top_k=5, top_p=0.9),
    max_new_tokens=64,
    stop_tokens=[],
  )
  lowered, _ = elsewhere.lower_decode(request, meshes.make(2, 4))
  sent = _sent(lowered.compile().as_text())
  width, vocab = pair.target.config.width, pair.target.config.vocab_size
  assert max(math.prod(dims) for _, dims in sent) * 4 < 1e6
  for _, dims in sent:
    # Besides activations, less than a shard of one row's probabilities.
    assert not {vocab, vocab // 4} & set(dims), dims
    is_small = math.prod(dims) < batch * vocab // 4
    assert is_small or dims[-1] in (width, width // 2), dims


@_meshes
def test_a_prefill_sends_activations_alone(shape):
  request = _request(shape, 'chain')
  with meshes.use(request.model.mesh):
    lowered = request.programs.prefill.lower(request.inputs, request.prompts)
    sent = _sent(lowered.compile().as_text())
  # The last layers of target and draft compute keys and values only.
  length = request.prompts.tokens.shape[1]
  assert _num_sums(sent) == {length: 3 + 1}
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
  # The forward passes of the model and its teacher have 5 sums each. The
  # backward pass has three per layer, where q and kv are summed separately, and
  # one for the logits.
  assert sent.count(('all-reduce', (rows, length, _WIDTH))) == 2 * 5 + 2 * 3 + 1
  # Gradients are summed over the data. Logits and p are never sent.
  for _, dims in sent:
    assert _VOCAB not in dims
    if _VOCAB // shape[1] in dims:
      assert shape[0] > 1 and sorted(dims) == [_WIDTH, _VOCAB // shape[1]]


def test_these_tests_would_see_a_gather():
  mesh = meshes.make(2, 4)
  logits = jax.ShapeDtypeStruct((_ROWS, 3, _VOCAB), jnp.float32)
  split = rules.sharding(mesh)(logits, 'batch', None, 'vocab')
  program = jax.jit(lambda x: jax.lax.top_k(x, 2)).lower(
    _abstract(logits, split)
  )
  sent = _sent(program.compile().as_text())
  assert ('all-gather', (_ROWS // 2, 3, _VOCAB)) in sent
  with pytest.raises(AssertionError):
    _assert_small(sent, (2, 4))
