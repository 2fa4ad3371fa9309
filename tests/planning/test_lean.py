"""Rounds on chips that are not there: little is sent, no cache is copied."""

import dataclasses
import functools
import math

import pytest
from testing import elsewhere, shallow, tiny

from specsamp.decoding.request import Request
from specsamp.drafting import (
  TokenTree,
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
)
from specsamp.drafting.trained import trained_drafter
from specsamp.evaluation.pairs import PAIRS
from specsamp.planning import compile, kernels, topology, work
from specsamp.planning.compile import PARTS
from specsamp.sharding import lookup

pytestmark = pytest.mark.extended

_PAIR = PAIRS['llama-3.1-70b+llama-3.1-8b']
_LAYERS = 2


def _slices(*marks):
  """Of GPUs and of TPUs, these with further marks."""
  return pytest.mark.parametrize(
    'where',
    [
      pytest.param('h100:8', marks=pytest.mark.gpu_aot),
      pytest.param('v5p:2x2x2', marks=[pytest.mark.tpu_aot, *marks]),
    ],
  )


@functools.cache  # the loop twice
def _part(name, where, vocab_size=_PAIR.target.vocab_size):
  target, draft = (
    dataclasses.replace(model, num_layers=_LAYERS, vocab_size=vocab_size)
    for model in (_PAIR.target, _PAIR.draft)
  )
  mesh = compile.mesh_of(topology.parse(where))
  return compile.compile_part(name, target, draft, mesh, gamma=4, context=2048)


@_slices()
@pytest.mark.parametrize('name', PARTS)
def test_llama_sends_activations_and_little_else(where, name):
  part = _part(name, where)
  assert part.temporaries < 64 * 2**20
  # Of five tokens at most; and the blocks of a draw, the square root of V.
  activations = {
    tokens * model.width * 2
    for model in (_PAIR.target, _PAIR.draft)
    for tokens in (1, 2, 5)
  }
  for each in part.collectives:
    blocks = 4 * 5 * 2 * math.isqrt(_PAIR.target.vocab_size)
    assert each.num_bytes in activations or each.num_bytes <= blocks, each
  if name == 'scoring pass':
    target = dataclasses.replace(_PAIR.target, num_layers=_LAYERS)
    predicted = work.of_pass(target, shards=8, tokens=5, context=2048)
    assert part.collectives == predicted.collectives
  if name == 'draft step' and where == 'h100:8':
    draft = dataclasses.replace(_PAIR.draft, num_layers=_LAYERS)
    predicted = work.of_pass(draft, shards=8, tokens=1, context=2048)
    assert part.kernels.total == pytest.approx(predicted.kernels, rel=0.15)
    assert part.kernels.in_graphs > part.kernels.total / 2


@_slices(pytest.mark.slow)
def test_a_larger_vocabulary_sends_no_more(where):
  """Four times as large, twice as much for a draw: its square root."""
  sent = lambda part: sum(
    each.num_bytes * each.count
    for each in part.collectives
    if each.num_bytes not in (2 * 4096 * 2, 4096 * 2, 5 * 8192 * 2)
  )
  name = 'speculative loop'
  four_times = _part(name, where, 4 * _PAIR.target.vocab_size)
  assert sent(four_times) <= 2.1 * sent(_part(name, where))


@pytest.mark.gpu_aot
def test_the_lookup_of_before_would_be_seen(monkeypatch):
  """Of one token, or of one block of probabilities, it is a slice; gathered."""
  monkeypatch.setattr(
    lookup, '_lookup', lambda take, array, index, *_, **__: take(array, index)
  )
  part = _part.__wrapped__('draft step', 'h100:8')
  assert part.collectives[0].num_bytes >= 4 * _PAIR.target.vocab_size


@pytest.mark.gpu_aot
def test_a_tree_of_one_row_gathers_no_probabilities():
  """To write into one shard of them, as a draw without replacement does."""
  pair = shallow.pair()
  job = Request.make(
    pair.target,
    [[1, 2, 3]],
    model_drafter(
      pair.draft, TokenTree.branching((4, 2)), 'without_replacement'
    ),
    'multi_candidate',
    tree_attention=True,
    max_new_tokens=64,
  )
  mesh = compile.mesh_of(topology.parse('h100:4'))
  lowered, _ = elsewhere.lower_decode(job, mesh)
  sent = compile.collectives(lowered.compile().as_text())
  gathered = [each for each in sent if each.kind == 'all-gather']
  assert (
    max(each.num_bytes for each in gathered) < pair.target.config.vocab_size
  )


def _request(kind, dtype):
  """Its caches are far larger than all else in a round.

  A layer's keys are 8 MiB; what cuBLAS asks for to work in is 4.
  """
  shape = dict(max_length=4096, head_dim=128, num_kv_heads=2, dtype=dtype)
  target = tiny.model(11, 0, num_layers=2, **shape)
  tree = TokenTree.branching((2, 1))
  verifier = 'multi_candidate'
  match kind:
    case 'model' | 'model, tree':
      drafter = model_drafter(
        tiny.model(11, 1, num_layers=1, **shape),
        tree if 'tree' in kind else 3,
        'without_replacement',
      )
    case 'eagle':
      drafter = trained_drafter(
        tiny.trained(target, kind), target, 3, 'without_replacement'
      )
    case 'ngram':
      drafter, verifier = ngram_drafter(tree), 'naive'
    case 'lookahead':
      drafter, verifier = lookahead_drafter(2, 2), 'naive'
  return Request.make(
    target, [[1, 2, 3]] * 4, drafter, verifier, max_new_tokens=4000,
    stop_tokens=[],
  )  # fmt: skip


@pytest.mark.gpu_aot
@pytest.mark.parametrize(
  ('kind', 'where', 'dtype'),
  [
    ('model', 'h100:1', 'bfloat16'),
    ('model, tree', 'h100:1', 'bfloat16'),
    ('eagle', 'h100:1', 'bfloat16'),
    ('ngram', 'h100:1', 'bfloat16'),
    ('lookahead', 'h100:1', 'bfloat16'),
    # Without bfloat16 passes differ, a chain's and a tree's, not what drafts.
    ('model', 't4:1', 'float16'),
    ('eagle', 't4:1', 'float16'),  # and features
    ('ngram', 't4:1', 'float16'),
    *(
      pytest.param(kind, 't4:1', 'float16', marks=pytest.mark.slow)
      for kind in ('model, tree', 'lookahead')
    ),
  ],
)
def test_a_round_copies_no_cache(kind, where, dtype):
  mesh = compile.mesh_of(topology.parse(where))
  lowered, state = elsewhere.lower_decode(_request(kind, dtype), mesh)
  compiled, run = kernels.compile_for_gpu(lowered)
  caches = elsewhere.caches(state)
  assert len(caches) == 2 * (2 + (kind in ('model', 'model, tree', 'eagle')))
  memory = compiled.memory_analysis()
  num_bytes = work.num_bytes(caches)
  assert memory.alias_size_in_bytes >= num_bytes
  assert memory.temp_size_in_bytes < num_bytes / len(caches)
  assert not elsewhere.copies(compiled.as_text(), {x.shape for x in caches})
  assert run.in_graphs > run.total / 2
