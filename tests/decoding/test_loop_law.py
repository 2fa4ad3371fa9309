"""Emitted texts have the target's distribution: chi-square of sampled texts.

The exactness of verifiers is proved by enumeration, in float64, so one verifier
is enough for each kind of loop: a chain, a tree, extra tokens, rows without a
draft, coupling. Here the whole path is compared with the distribution: caches,
rewinding, keys, cuts. Other verifiers, shapes and drafters are slow. Known
mistakes must fail the same test.
"""

import dataclasses

import jax.numpy as jnp
import pytest
from flax import struct
from laws import (
  GROUPS,
  LENGTH,
  PLAIN,
  VOCAB,
  check_distribution,
  check_law,
  check_whole_drafts,
  distributions_of,
  drafter_of,
  engine_counts,
  p_values_of,
  sizes,
  texts,
)
from testing import tiny

from specsamp import Engine
from specsamp.drafting import (
  DynamicTree,
  LanguageModelDrafter,
  TokenTree,
  adaptive_drafter,
  adaptive_tree_drafter,
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
)
from specsamp.drafting.adaptive_tree import Past
from specsamp.drafting.policy import Policy
from specsamp.drafting.trained import trained_drafter
from specsamp.sampling import draw
from specsamp.verification.token import TokenVerifier

pytestmark = [
  pytest.mark.integration,
  pytest.mark.usefixtures('optimized'),
]

_CHAIN = TokenTree.chain(3)
_WIDE = TokenTree.branching((3, 1))
# Leaves at every depth, and nodes of a level with one and two children.
_UNEVEN = TokenTree((-1, 0, 0, 0, 1, 1, 3, 4))
# As many candidates as tokens, and levels of unlike nodes.
_CROWDED = TokenTree((-1, 0, 0, 0, 0, 1, 1, 4))
_DYNAMIC = DynamicTree.of(6, 3, 2)


def _slow(*case):
  return pytest.param(*case, marks=pytest.mark.slow)


def _extended(*case):
  return pytest.param(*case, marks=pytest.mark.extended)


@pytest.fixture(scope='module')
def pair():
  """Target and draft, whose distributions overlap by about a half."""
  return tiny.model(VOCAB, 0, max_length=8), tiny.draft(VOCAB, 1, max_length=8)


@pytest.fixture(scope='module')
def distributions(pair):
  return distributions_of(pair[0])


@sizes
def test_autoregressive(pair, distributions, batches):
  counts, outs = texts(pair[0], GROUPS, batches, seed=1)
  check_distribution(GROUPS, counts, distributions)
  assert all((out.rounds == LENGTH).all() for out in outs)


@sizes
@pytest.mark.parametrize(
  ('verifier', 'draft_len'),
  [('block', 3), _slow('token', 1)],
)
def test_speculative(pair, distributions, verifier, draft_len, batches):
  drafter = drafter_of(pair, draft_len)
  check_law(
    pair[0], distributions, batches, drafter=drafter, verifier=verifier, seed=2
  )


@sizes
@pytest.mark.parametrize('kind', ['int8', _slow('w8a8')])
def test_quantized_target(pair, kind, batches):
  """Its distribution is its own, not that of its floats."""
  target, draft = (model.quantized(kind) for model in pair)
  drafter = drafter_of((target, draft), 3)
  check_law(
    target,
    distributions_of(target),
    batches,
    drafter=drafter,
    verifier='block',
    seed=2,
  )


@pytest.mark.slow  # quick trees: a trained drafter's, and two vocabularies
@sizes
@pytest.mark.parametrize(
  ('verifier', 'law', 'tree'),
  [
    ('multi_candidate', 'iid', _WIDE),
    ('k_seq', 'iid', TokenTree.branching((2, 2))),
    ('greedy_block', 'iid', TokenTree.branching((2, 1, 1))),
    ('top_plus_one', 'top_plus_one', _CROWDED),
    ('traversal', 'top_plus_one', _CROWDED),
  ],
)
def test_trees(pair, distributions, verifier, law, tree, batches):
  """In the rows with top-k there are more candidates than tokens."""
  drafter = drafter_of(pair, tree, law)
  outs = check_law(
    pair[0], distributions, batches, drafter=drafter, verifier=verifier, seed=5
  )
  assert all(out.num_accepted_per_rank[:, 1].any() for out in outs)


@sizes
@pytest.mark.parametrize(
  ('kind', 'verifier', 'law', 'tree'),
  [
    ('eagle', 'traversal', 'top_plus_one', _UNEVEN),
    _slow('eagle', 'traversal', 'without_replacement', _UNEVEN),
    ('mtp', 'multi_candidate', 'without_replacement', _UNEVEN),
    _extended('eagle3', 'multi_candidate', 'without_replacement', _UNEVEN),
    # The same loop with other heads or masks than above.
    _extended('dspark', 'block', 'iid', _CHAIN),
    _slow('dspark', 'traversal', 'without_replacement', _UNEVEN),
    _slow('dflash', 'multi_candidate', 'without_replacement', _UNEVEN),
    *(
      _slow(kind, 'traversal', 'top_plus_one', _UNEVEN)
      for kind in (
        *('medusa', 'hydra', 'mtp', 'eagle3', 'medusa_parallel'),
        *('eagle_parallel', 'peagle', 'dflash', 'dspark'),
      )
    ),
    _extended('treeflash', 'naive', 'deterministic', DynamicTree.of(6, 2, 3)),
    _slow('treeflash', 'traversal', 'without_replacement', _UNEVEN),
    _slow('eagle', 'naive', 'deterministic', _DYNAMIC),
    _slow('hydra', 'token', 'iid', _CHAIN),
    _slow('medusa', 'block', 'iid', _CHAIN),
    _slow('medusa_parallel', 'traversal', 'without_replacement', _WIDE),
  ],
)
def test_trained_drafters(
  pair, distributions, kind, verifier, law, tree, batches
):
  target, fields = pair[0], {}
  if kind in ('eagle3', 'peagle'):  # q is 0 for a token that the target emits
    target = tiny.model(VOCAB, 0, max_length=8, num_layers=6)
    distributions = distributions_of(target)
    fields = {'draft_vocab': 3} if kind == 'eagle3' else {}
  make = tiny.published if kind in ('dspark', 'peagle') else tiny.trained
  trained = make(target, kind, **fields)
  drafter = trained_drafter(trained, target, tree, law)
  check_law(
    target, distributions, batches, drafter=drafter, verifier=verifier, seed=7
  )


@pytest.mark.extended
def test_engine(pair, distributions):
  """Requests take the slots of others that ended, one by one."""
  engine = Engine(
    pair[0],
    slots=200,
    drafter=drafter_of(pair, _UNEVEN, 'top_plus_one'),
    verifier='traversal',
    max_length=8,
  )
  check_distribution(GROUPS, engine_counts(engine), distributions)


@pytest.mark.extended
@sizes
@pytest.mark.parametrize(
  ('rows', 'letters', 'verifier', 'law', 'tree'),
  [
    # The draft lacks a token, and the target's embedding is padded.
    (6, 3, 'multi_candidate', 'without_replacement', _WIDE),
    _slow(VOCAB, 6, 'block', 'iid', _CHAIN),
  ],
)
def test_two_vocabularies(
  pair, distributions, rows, letters, verifier, law, tree, batches
):
  """A token that the draft lacks is not drafted, a padded row not emitted."""
  padded = pair[0].for_target(tiny.model(rows, 9))
  target = dataclasses.replace(padded, tokenizer=pair[0].tokenizer)
  draft = tiny.draft(letters, 1, max_length=8).for_target(target)
  assert draft.config.vocab_size == target.config.vocab_size == rows
  assert target.config.num_tokens == VOCAB
  assert draft.config.num_tokens == min(letters, VOCAB)
  drafter = model_drafter(draft, tree, law)
  check_law(
    target, distributions, batches, drafter=drafter, verifier=verifier, seed=9
  )


@sizes
@pytest.mark.parametrize(
  ('verifier', 'law', 'tree'),
  [
    ('block', 'iid', _CHAIN),
    _slow('multi_candidate', 'without_replacement', _WIDE),
  ],
)
def test_two_tokenizers(pair, distributions, verifier, law, tree, batches):
  """The draft has other ids, lacks a token and has others."""
  draft = tiny.foreign_draft(pair[0]).translated_for(pair[0])
  drafter = model_drafter(draft, tree, law)
  check_law(
    pair[0], distributions, batches, drafter=drafter, verifier=verifier, seed=9
  )


def _lookup(pair, kind, tree):
  documents = ([1, 0, 2, 1, 3, 0, 0], [2, 3, 3, 1, 2, 0], [3, 2, 1, 1, 0, 3])
  if kind == 'lookahead':
    return lookahead_drafter(tree, window=1)
  ngram = ngram_drafter(tree, 3, 2, datastore=documents)
  if kind == 'ngram':
    return ngram
  return ngram_or_model(ngram, drafter_of(pair, tree.depth - 1))


@sizes
@pytest.mark.parametrize(
  ('kind', 'verifier', 'tree'),
  [
    ('lookahead', 'naive', TokenTree.branching((2, 1))),
    _extended('ngram or model', 'block', TokenTree.chain(2)),
    _slow('ngram', 'naive', _WIDE),
  ],
)
def test_lookups(pair, distributions, kind, verifier, tree, batches):
  """Deterministic drafts; some rows have none while others do."""
  drafter = _lookup(pair, kind, tree)
  args = dict(drafter=drafter, verifier=verifier, seed=8)
  counts, (first, *_) = texts(pair[0], GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions)
  check_whole_drafts(first)
  accepted, drafted = first.num_accepted_per_pos, first.num_drafted_per_pos
  assert (accepted[:, 0] < drafted[:, 0]).mean() > 0.1
  has_none = drafted[:, 0] < first.rounds
  assert has_none.any() == (kind != 'ngram or model')


@sizes
def test_adaptive(pair, distributions, batches, monkeypatch):
  """Rounds without a draft alternate with others: caches lag and catch up."""
  alternate = lambda self, *_: jnp.where(self.shared.waited > 0, 1, 0)
  monkeypatch.setattr(Policy, 'choose', alternate)
  drafter = adaptive_drafter(drafter_of(pair, 3), (0, 3), (1, 1), 0.3)
  counts, (first, *_) = texts(
    pair[0], GROUPS, batches, drafter=drafter, verifier='block', seed=9
  )
  check_distribution(GROUPS, counts, distributions)
  # Rounds without a draft, and drafts that were cut short.
  per_pos = first.num_drafted_per_pos
  assert (per_pos[:, 0] < first.rounds).all() and per_pos[:, 0].all()
  assert (per_pos[:, 2] < per_pos[:, 0]).any() and per_pos[:, 2].any()


@sizes
def test_dynamic_trees(pair, distributions, batches):
  """A model's cache holds more nodes than are kept, and in another order."""
  drafter = drafter_of(pair, _DYNAMIC, 'deterministic')
  check_law(
    pair[0], distributions, batches, drafter=drafter, verifier='naive', seed=10
  )


def _adaptive_tree(pair, monkeypatch):
  """Returns a drafter whose sizes jump with every bit of the drafts."""

  def choose(past, tokens_k, ms_k):
    return (1e4 * (past.tokens + tokens_k[-1])).astype(jnp.int32) % 3

  monkeypatch.setattr(Past, 'choose', choose)
  drafter = drafter_of(pair, _DYNAMIC, 'deterministic')
  return adaptive_tree_drafter(drafter, (1, 3, 6), (1, 1, 1))


@sizes
def test_adaptive_trees(pair, distributions, batches, monkeypatch):
  (first, *_) = check_law(
    pair[0],
    distributions,
    batches,
    drafter=_adaptive_tree(pair, monkeypatch),
    verifier='naive',
    seed=11,
  )
  # Rounds without a draft, and trees with and without a third level.
  per_pos = first.num_drafted_per_pos
  assert (per_pos[:, 0] < first.rounds).any() and per_pos[:, 2].any()
  assert (per_pos[:, 2] < per_pos[:, 0]).any()


@pytest.mark.extended
def test_adaptive_trees_in_an_engine(pair, distributions, monkeypatch):
  engine = Engine(
    pair[0],
    slots=200,
    drafter=_adaptive_tree(pair, monkeypatch),
    verifier='naive',
    rounds=2,
  )
  check_distribution(GROUPS, engine_counts(engine), distributions)


@pytest.mark.slow  # test_loop.py compares with sampling without a draft
@sizes
def test_coupled(pair, distributions, batches):
  """The distribution is over seeds: each seed has one text."""
  tree = TokenTree.branching((2, 2))
  drafter = drafter_of(pair, tree, 'deterministic', True)
  check_law(
    pair[0], distributions, batches, drafter=drafter, verifier='gumbel', seed=6
  )


# Mistakes that this test must find. Enumeration finds wrong verifiers too.


def _check_fails(pair, distributions, drafter, verifier):
  counts, _ = texts(
    pair[0], GROUPS, 5, drafter=drafter, verifier=verifier, seed=4
  )
  p_values = p_values_of(GROUPS, counts, distributions)
  assert p_values[PLAIN.name, 'first three'] < 1e-6


@struct.dataclass
class WrongQ(LanguageModelDrafter):
  """Reports q at another temperature than it draws from."""

  def propose(self, *args):
    draft, state = super().propose(*args)
    q = jnp.sqrt(draft.q)
    return draft.replace(q=q / q.sum(axis=-1, keepdims=True)), state


def _as(kind, drafter):
  names = [field.name for field in dataclasses.fields(drafter)]
  return kind(**{name: getattr(drafter, name) for name in names})


def test_a_wrong_q_fails(pair, distributions):
  _check_fails(pair, distributions, _as(WrongQ, drafter_of(pair, 1)), 'token')


@dataclasses.dataclass(frozen=True)
class Retraced(TokenVerifier):
  """The right rule by another name, so that it is compiled again."""


def test_bits_shared_by_draft_and_verdict_fail(
  pair, distributions, monkeypatch
):
  stream_keys = draw.stream_keys
  monkeypatch.setattr(
    draw,
    'stream_keys',
    lambda keys, at, stream: stream_keys(keys, at, draw.Stream.DRAFT),
  )
  _check_fails(pair, distributions, drafter_of(pair, 1), Retraced())
