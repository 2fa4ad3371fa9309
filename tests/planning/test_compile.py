"""Programs compiled for other chips: little is sent, and no cache is copied."""

import dataclasses
import math

import pytest
from testing import elsewhere, shallow, tiny

from specsamp.decoding.request import Request
from specsamp.drafting import TokenTree, model_drafter
from specsamp.drafting.trained import trained_drafter
from specsamp.evaluation.pairs import PAIRS
from specsamp.models import TransformerConfig, presets
from specsamp.planning import compile, topology, work
from specsamp.planning.work import Collective
from specsamp.sharding import lookup

_GIB = 2**30
_MIB = 2**20
_PAIR = PAIRS['llama-3.1-70b+llama-3.1-8b']


def test_collectives_of_a_text():
  lines = """
    %a = f32[2,8]{1,0:T(8,128)S(3)} all-reduce(%x), channel_id=1
    %b = (f32[4]{0}, pred[1,3]{1,0:T(1,128)}) all-reduce(%x, %y), channel_id=2
    %c = bf16[5]{0} all-reduce-start(%x), channel_id=3
    %d = bf16[5]{0} all-reduce-done(%c)
    %e = (bf16[5]{0}, bf16[20]{0}) all-gather-start(%x), dimensions={0}
    %f = f32[2,8]{1,0} all-reduce(%z), channel_id=4
    %g = (u32[1]{0}, u32[1]{0}, u32[], u32[]{:S(2)}) collective-permute-start(%x)
    %h = f32[] add(%all-reduce, %y)
    %i = (f8e4m3fn[4]{0}, s8[1], s8[1], s8[1], s8[1], /*index=5*/s8[4]{0}) all-to-all(%x)
    %j = ((f32[1]{0}, f32[2]{0}), (f32[8]{0}, f32[16]{0})) all-gather-start(%x, %y)
  """  # noqa: E501
  assert compile.collectives(lines) == (
    Collective('all-gather', 96, 1),
    Collective('all-reduce', 64, 2),
    Collective('all-gather', 40, 1),
    Collective('all-reduce', 19, 1),
    Collective('all-to-all', 12, 1),
    Collective('all-reduce', 10, 1),
    Collective('collective-permute', 4, 1),
  )


@pytest.mark.extended
@pytest.mark.tpu_aot
def test_the_loop_of_chinchilla_is_lean():
  compiled = compile.compile_program(
    compile.LOOP,
    dataclasses.replace(presets.chinchilla_70b(), num_layers=4),
    presets.chinchilla_draft_4b(),
    topology.parse('v4:2x2x4'),
    gamma=4,
    context=2048,
  )
  # A chip holds the weights once, and caches are not copied.
  assert 0.4 < compiled.weights / _GIB < 1.2
  assert compiled.temporaries <= compiled.caches / 2
  assert compiled.total < compiled.topology.chip.hbm_bytes / 3
  by_size = {each.num_bytes: each for each in compiled.collectives}
  assert {each.kind for each in compiled.collectives} == {'all-reduce'}
  # Two per layer and one for the embedding, of five tokens' activations.
  assert by_size.pop(5 * 8192 * 2).count == 2 * 4 + 1
  # The draft's first step, and its others in a loop.
  assert by_size.pop(2 * 6144 * 2).count == 2 * 17
  # Sampling sends sums and a block of the vocabulary, never all 32,000 tokens.
  assert max(by_size) <= 1000
  assert sum(each.count for each in by_size.values()) < 40


def _compiled(kind, where):
  models = [dataclasses.replace(c, num_layers=2) for c in _PAIR[:2]]
  where = topology.parse(where)
  return compile.compile_program(kind, *models, where, gamma=4, context=2048)


@pytest.mark.extended
@pytest.mark.parametrize(
  ('kind', 'where'),
  [
    pytest.param(compile.SCORING_PASS, 'v5p:2x2x2', marks=pytest.mark.tpu_aot),
    pytest.param(compile.SCORING_PASS, 'h100:8', marks=pytest.mark.gpu_aot),
    pytest.param(compile.LOOP, 'h100:8', marks=pytest.mark.gpu_aot),
  ],
)
def test_llama_sends_activations_and_little_else(kind, where):
  compiled = _compiled(kind, where)
  assert compiled.temporaries < 64 * _MIB
  # Activations of five tokens at most, and the blocks of a draw, whose size is
  # the square root of V.
  activations = {
    tokens * model.width * 2 for model in _PAIR[:2] for tokens in (1, 2, 5)
  }
  for each in compiled.collectives:
    blocks = 4 * 5 * 2 * math.isqrt(_PAIR.target.vocab_size)
    assert each.num_bytes in activations or each.num_bytes <= blocks, each
  if kind == compile.SCORING_PASS:
    target = dataclasses.replace(_PAIR.target, num_layers=2)
    predicted = work.of_pass(target, shards=8, tokens=5, context=2048)
    assert compiled.collectives == predicted.collectives


@pytest.mark.extended
@pytest.mark.parametrize(
  'where',
  [
    pytest.param('v5e-16', marks=pytest.mark.tpu_aot),
    pytest.param('h100:8', marks=pytest.mark.gpu_aot),
  ],
)
def test_no_table_of_experts_is_copied(where):
  """On v5e-16 a table of a layer takes 24 MiB of a chip, an expert 192 KiB."""
  where = topology.parse(where)
  target = dataclasses.replace(
    PAIRS['qwen3-30b-a3b+qwen3-0.6b'].target, num_layers=2
  )
  compiled = compile.compile_program(
    compile.SCORING_PASS, target, target, where, gamma=4, context=2048
  )
  assert compiled.temporaries < 4 * _MIB
  chips = where.num_chips
  predicted = work.of_pass(target, shards=chips, tokens=5, context=2048)
  assert compiled.collectives == predicted.collectives


@pytest.mark.extended
@pytest.mark.parametrize('kind', compile.KINDS)
@pytest.mark.parametrize(
  'where',
  [
    pytest.param('v5e:2x2', marks=pytest.mark.tpu_aot),
    pytest.param('h100:1', marks=pytest.mark.gpu_aot),
    pytest.param('h100:8', marks=pytest.mark.gpu_aot),
    pytest.param('t4:1', marks=pytest.mark.gpu_aot),
  ],
)
def test_weights_in_8_bits_are_not_copied_to_floats(kind, where):
  where = topology.parse(where)
  shape = dataclasses.replace(
    presets.llama3_8b(), num_layers=2, vocab_size=32768, dtype='bfloat16'
  )
  model = work.quantized_config(topology.as_computed(shape, where), 'int8')
  run = dict(gamma=4, context=256)
  compiled = compile.compile_program(kind, model, model, where, **run)
  floats, _ = work.shapes(shape, where.num_chips, 256, 1)
  num_models = 2 if kind == compile.LOOP else 1
  assert compiled.weights < 0.51 * num_models * work.num_bytes(floats)
  # Chips send the same messages as with floats.
  predicted = work.of_pass(
    model, shards=where.num_chips, tokens=5, context=256
  ).collectives
  if kind == compile.SCORING_PASS:
    assert compiled.collectives == predicted
  # In 16 bits an eighth of the second weight of an MLP has 14 MiB.
  assert compiled.temporaries < 12 * _MIB


@pytest.mark.extended
@pytest.mark.gpu_aot
def test_a_long_prompt_takes_little_memory():
  """Scores of the whole prompt would take 16 GiB of each GPU."""
  models = [dataclasses.replace(c, num_layers=2) for c in _PAIR[:2]]
  where = topology.parse('h100:8')
  compiled = compile.compile_program(
    compile.PREFILL, *models, where, gamma=4, context=32_768
  )
  assert compiled.temporaries < _GIB
  assert {each.kind for each in compiled.collectives} == {'all-reduce'}


@pytest.mark.extended
@pytest.mark.gpu_aot
def test_a_gathered_lookup_would_be_seen(monkeypatch):
  monkeypatch.setattr(
    lookup, '_lookup', lambda take, array, index, *_, **__: take(array, index)
  )
  compiled = _compiled(compile.DRAFT_STEP, 'h100:8')
  assert compiled.collectives[0].num_bytes >= 4 * _PAIR.target.vocab_size


@pytest.mark.extended
@pytest.mark.gpu_aot
def test_a_tree_of_one_row_gathers_no_probabilities():
  """A draw without replacement writes into one shard of them."""
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


@pytest.mark.extended
@pytest.mark.gpu_aot
@pytest.mark.parametrize(
  ('kind', 'where', 'dtype'),
  [
    ('tree', 'h100:1', 'bfloat16'),
    ('eagle', 'h100:1', 'bfloat16'),
    # Without bfloat16 the passes over a chain and a tree differ.
    ('chain', 't4:1', 'float16'),
    pytest.param('tree', 't4:1', 'float16', marks=pytest.mark.slow),
  ],
)
def test_a_round_copies_no_cache(kind, where, dtype):
  # Caches are far larger than the rest of a round. A layer's keys are 8 MiB;
  # cuBLAS uses 4 MiB of workspace.
  shape = dict(max_length=4096, head_dim=128, num_kv_heads=2, dtype=dtype)
  target = tiny.model(11, 0, num_layers=2, **shape)
  law = 'without_replacement'
  if kind == 'eagle':
    eagle = tiny.trained(target, kind)
    drafter = trained_drafter(eagle, target, 3, law)
  else:
    draft = tiny.model(11, 1, num_layers=1, **shape)
    tree = TokenTree.branching((2, 1)) if kind == 'tree' else 3
    drafter = model_drafter(draft, tree, law)
  job = Request.make(
    target, [[1, 2, 3]] * 4, drafter, 'multi_candidate', max_new_tokens=4000,
    stop_tokens=[],
  )  # fmt: skip
  mesh = compile.mesh_of(topology.parse(where))
  lowered, state = elsewhere.lower_decode(job, mesh)
  compiled = lowered.compile()
  caches = elsewhere.caches(state)
  assert len(caches) == 2 * 3  # keys and values of each layer
  memory = compiled.memory_analysis()
  num_bytes = work.num_bytes(caches)
  assert memory.alias_size_in_bytes >= num_bytes
  assert memory.temp_size_in_bytes < num_bytes / len(caches)
  assert not elsewhere.copies(compiled.as_text(), {x.shape for x in caches})


@pytest.mark.extended
@pytest.mark.gpu_aot
@pytest.mark.parametrize(
  ('kind', 'change', 'converts'),
  [
    (compile.LOOP, {}, False),
    (compile.LOOP, dict(tied_embeddings=True, qk_norm=True), False),
    pytest.param(
      compile.LOOP,
      dict(norm='layer', positions='learned', gated=False, biases='all'),
      False,
      marks=pytest.mark.slow,
    ),
    (compile.SCORING_PASS, dict(dtype='bfloat16'), True),
  ],
  ids=['llama', 'tied', 'opt', 'bfloat16'],
)
def test_a_pass_without_bfloat16_converts_no_weight(kind, change, converts):
  """A T4 would convert every weight of bfloat16, and write the result."""
  shape = dict(num_layers=2, num_heads=8, num_kv_heads=4, head_dim=128)
  target = TransformerConfig(
    vocab_size=16384, width=2048, mlp_width=2816, max_length=2048, **shape,
    dtype='float16',
  )  # fmt: skip
  target = dataclasses.replace(target, **change)
  draft = dataclasses.replace(target, num_layers=1)
  mesh = compile.mesh_of(topology.parse('t4:1'))
  lowered, _ = compile.lower(kind, target, draft, mesh, gamma=4, context=512)
  # The smallest weight takes 8 MiB in float32; cuBLAS uses 4 of workspace.
  temporaries = lowered.compile().memory_analysis().temp_size_in_bytes
  assert (temporaries >= 8 * _MIB) == converts
