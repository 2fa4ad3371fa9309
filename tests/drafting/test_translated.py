"""Drafts with another tokenizer: their q, texts and refusals."""

import dataclasses

import jax
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp import Engine, SamplingParams
from specsamp.checkpoints import model_dir
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.conformance import check_drafter
from specsamp.drafting import TokenTree, model_drafter
from specsamp.errors import UserError
from specsamp.sampling import transforms
from specsamp.sharding import mesh as meshes

VOCAB = 11
MISSING = [8, 9]
TREE = TokenTree.branching((2, 1, 1))
PROMPTS = [[3, 8, 4, 9, 5, 9, 2, 6], [8], [2, 7, 1], [0, 2, 8], [10, 9]]
MIXED = SamplingParams(
  temperature=np.array([1.0, 0.7, 1.5, 0.0, 1.0]),
  top_p=np.array([1.0, 1.0, 0.9, 1.0, 0.8]),
)


@pytest.fixture(scope='module')
def target():
  return tiny.model(VOCAB, 28)


@pytest.fixture(scope='module')
def foreign(target):
  return tiny.foreign_draft(target, len(MISSING))


@pytest.fixture(scope='module')
def draft(target, foreign):
  return foreign.translated_for(target)


@pytest.fixture(params=['chain', 'tree'])
def drafter(request, draft):
  if request.param == 'chain':
    return model_drafter(draft, 3)
  return model_drafter(draft, TREE, 'without_replacement')


def _logits(model, tokens):
  run = jax.jit(model.transformer.apply)
  return np.asarray(run({'params': model.params}, np.asarray([tokens])).logits)


def test_q_is_that_of_the_shared_tokens(target, foreign, draft):
  """The draft reads its own ids, and a token that ends alike for others."""
  assert draft.tokenizer == target.tokenizer
  pieces, own = target.tokenizer.pieces(), foreign.tokenizer.pieces()
  ids = [own.index(p) if p in own else own.index(p[-1:]) for p in pieces[:9]]
  ids += [0, own.index(pieces[10])]  # nothing ends like token 9
  q = transforms.probabilities(_logits(draft, PROMPTS[0]), SamplingParams())
  logits = _logits(foreign, [ids[token] for token in PROMPTS[0]])
  own_q = np.asarray(transforms.probabilities(logits, SamplingParams()))
  expected = own_q[..., ids]
  expected[..., MISSING] = 0
  expected /= expected.sum(-1, keepdims=True)
  np.testing.assert_allclose(q, expected, atol=1e-6)
  assert not np.asarray(q)[..., MISSING].any()


def test_conforms(target, drafter):
  check_drafter(drafter, target)


def test_greedy_texts_are_the_plain_ones(target, drafter):
  args = dict(
    max_new_tokens=20, sampling=SamplingParams(temperature=0.0), stop_tokens=[]
  )
  plain = specsamp.generate(target, PROMPTS, **args)
  assert {*MISSING} & {token for text in plain.tokens for token in text}
  out = specsamp.generate(target, PROMPTS, drafter=drafter, **args)
  assert out.tokens == plain.tokens
  assert 0 < out.acceptance_rate < 1


def test_rows_are_the_same_alone_and_in_an_engine(target, drafter):
  complete = lambda rows, sampling: (
    specsamp.generate(
      target,
      [PROMPTS[row] for row in rows],
      drafter=drafter,
      sampling=sampling,
      max_new_tokens=12,
      seed=rows,
      stop_tokens=[],
    ).tokens
  )
  together = complete(range(5), MIXED)
  row_of = lambda i: jax.tree.map(lambda v: v[i], MIXED.broadcast(5))
  alone = [complete([i], row_of(i))[0] for i in range(5)]
  assert alone == together
  engine = Engine(target, slots=2, drafter=drafter, max_length=32)
  ids = [
    engine.submit(
      prompt, sampling=row_of(i), max_new_tokens=12, seed=i, stop_tokens=[]
    )
    for i, prompt in enumerate(PROMPTS)
  ]
  texts = {}
  while len(texts) < len(ids):
    for chunk in engine.step():
      if chunk.completion:
        texts[chunk.id] = chunk.completion.tokens
  assert [texts[i] for i in ids] == together


def test_sharded_drafts(target, foreign, draft):
  mesh = meshes.make(1, 2, jax.devices()[:2])
  sharded = foreign.on(mesh).translated_for(target.on(mesh))
  assert sharded.mesh == mesh
  with meshes.use(mesh):
    logits = _logits(sharded, PROMPTS[0])
  np.testing.assert_allclose(logits, _logits(draft, PROMPTS[0]), atol=1e-5)


@pytest.mark.parametrize('kind', ['int8', 'w8a8'])
def test_quantized_drafts(target, foreign, draft, kind):
  """Before or after: the tables stay integers."""
  before = foreign.quantized(kind).translated_for(target)
  after = draft.quantized(kind)
  for model in (before, after):
    assert model.weights == kind
  pair = [_logits(model, PROMPTS[0]) for model in (before, after)]
  np.testing.assert_array_equal(*pair)


def test_vocabularies_that_share_too_little(target):
  names = ('first 0', 'first 1', *'abcdefghi')
  tokenizer = tiny.Letters(VOCAB, names=names)
  other = dataclasses.replace(target, tokenizer=tokenizer)
  with pytest.raises(UserError, match=r'share 18.2% .* expected at least 25%'):
    other.translated_for(target)


def test_a_draft_is_translated_once(target, draft, tmp_path):
  calls = draft.for_target, draft.translated_for
  saves = (
    lambda _: model_dir.save(draft, tmp_path / 'own'),
    lambda _: huggingface.save(draft, tmp_path / 'hf'),
  )
  for call in (*calls, *saves):
    with pytest.raises(UserError, match='expected the draft itself'):
      call(target)


def test_a_padded_target(target, foreign):
  """A row that is not a token is not drafted."""
  padded = target.for_target(tiny.model(13, 9))
  draft = foreign.translated_for(padded)
  assert draft.config.vocab_size == 13
  q = transforms.probabilities(_logits(draft, [1, 2]), SamplingParams())
  assert not np.asarray(q)[..., VOCAB:].any()
