"""Drafters that read a target's features, against whole passes without caches.

A drafter that reads the token or the feature one place beside the right one
still says only what its target says: the text's law does not show it. So
tokens, laws and caches are held to what they must be here.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import specsamp
from specsamp import verification
from specsamp.decoding.generate import _compiled, _Job
from specsamp.drafting import TokenTree, modules
from specsamp.drafting.modules import trained_drafter
from specsamp.errors import UserError
from specsamp.sampling import draw, transforms
from specsamp.sampling.transforms import SamplingParams
from specsamp.verification import Verdict

VOCAB = 11
CHAIN = TokenTree.chain(3)
# Leaves at every depth; nodes with one, two and three children in a level.
IRREGULAR = TokenTree((-1, 0, 0, 0, 1, 1, 3, 4, 4, 6))
SHAPES = {
  'chain': (CHAIN, 'iid', 'token'),
  'tree': (IRREGULAR, 'without_replacement', 'multi_candidate'),
}
GREEDY = SamplingParams(temperature=0.0)
kinds = pytest.mark.parametrize('kind', modules.KINDS)
# Medusa's heads are Hydra's but for what they read, and its parallel drafter is
# EAGLE's: whole texts of these two take as long again.
texts = pytest.mark.parametrize(
  'kind',
  [
    'hydra',
    'eagle',
    'eagle_parallel',
    pytest.param('medusa', marks=pytest.mark.slow),
    pytest.param('medusa_parallel', marks=pytest.mark.slow),
  ],
)


@functools.cache
def _target(positions='rotary', vocab_size=VOCAB, seed=28, width=16):
  return tiny.model(
    vocab_size, seed, positions=positions, num_layers=1, width=width
  )


def _drafter(kind, shape, target=None):
  target = target or _target()
  tree, law, _ = SHAPES[shape]
  return trained_drafter(tiny.trained(target, kind), target, tree, law)


@functools.partial(jax.jit, static_argnums=0)
def _features(transformer, params, tokens_bs):
  return transformer.apply({'params': params}, tokens_bs).hidden


def _features_of(target, tokens_bs):
  return _features(target.transformer, target.params, tokens_bs)


# The laws of a draft.

LENGTH = np.array([3, 5, 1, 9], np.int32)
MIXED = SamplingParams(
  temperature=np.array([1.0, 0.7, 0.0, 1.0]),
  top_k=np.array([0, 0, 0, 2]),
  top_p=np.array([1.0, 0.9, 0.3, 1.0]),
)


@jax.jit
def _first_draft(drafter, tokens_bs, hidden_bsd, sampling, seeds_b):
  """Of rows of these lengths: the draft of the first round."""
  capacity = tokens_bs.shape[1] + 16
  state = drafter.init(tokens_bs, LENGTH, hidden_bsd, capacity)
  keys = draw.row_keys(seeds_b)
  return drafter.propose(state, tokens_bs, LENGTH, sampling, keys)[0]


def _hidden_by_hand(drafter, target, tokens_rs, root_r, depth_r):
  """What the LM head reads after paths: [R, D].

  Args:
    drafter: of any kind.
    target: the model that it drafts for.
    tokens_rs: text, and from `root` on a path through the draft.
    root_r: where the root of each row stands.
    depth_r: how many drafted tokens of each row's path have been read.
  """
  kind, _ = modules.kind_of(drafter.module)
  params = jax.tree.map(np.asarray, drafter.params)
  feature_rsd = np.asarray(_features_of(target, tokens_rs))
  before_rsd = np.zeros_like(feature_rsd)
  before_rsd[:, 1:] = feature_rsd[:, :-1]
  rows = np.arange(len(root_r))
  if kind in ('medusa', 'hydra'):
    embedding = np.asarray(target.params['embedding'])
    result = []
    for row, (root, depth) in enumerate(zip(root_r, depth_r, strict=True)):
      feature = before_rsd[row, root]
      read = [feature]
      if kind == 'hydra':
        read += list(embedding[tokens_rs[row, root : root + depth + 1]])
      own = params[f'head_{depth + 1}']
      fused = np.concatenate(read) @ own['fuse'] + own['fuse_bias']
      result.append(feature + fused / (1 + np.exp(-fused)))
    return np.stack(result)

  module, frame = drafter.module, drafter.frame
  at_rs = np.broadcast_to(
    np.arange(tokens_rs.shape[1], dtype=np.int32), tokens_rs.shape
  )
  variables = {'params': drafter.params}

  @jax.jit
  def layer(before_rsd, masks_rsd, is_mask_rs):
    embedded_rsd = frame.embed(tokens_rs) + frame.place(at_rs)
    x_rsd = module.apply(variables, embedded_rsd, before_rsd, method='text')
    x_rsd = jnp.where(is_mask_rs[:, :, None], masks_rsd, x_rsd)
    return module.apply(variables, x_rsd, at_rs)[0]

  masks_rsd = np.zeros_like(before_rsd)
  is_mask_rs = np.zeros(tokens_rs.shape, bool)
  if kind == 'eagle':  # its own outputs take the place of features
    for step in range(max(depth_r)):
      out_rsd = np.asarray(layer(before_rsd, masks_rsd, is_mask_rs))
      before_rsd[rows, root_r + step + 1] = out_rsd[rows, root_r + step]
  else:
    for mask in range(module.num_masks):
      index = np.full(1, mask, np.int32)
      place = frame.place(root_r[:, None] + index[None] + 1)
      x_r1d = module.apply(variables, index, place, method='masks')
      masks_rsd[rows, root_r + mask + 1] = np.asarray(x_r1d)[:, 0]
      is_mask_rs[rows, root_r + mask + 1] = True
  out_rsd = np.asarray(layer(before_rsd, masks_rsd, is_mask_rs))
  return out_rsd[rows, root_r + depth_r]


@pytest.mark.parametrize(
  ('kind', 'shape', 'positions'),
  [
    ('medusa', 'tree', 'rotary'),
    ('hydra', 'tree', 'rotary'),
    ('eagle', 'chain', 'rotary'),
    ('eagle', 'tree', 'relative'),
    pytest.param('eagle', 'tree', 'learned', marks=pytest.mark.slow),
    ('medusa_parallel', 'tree', 'rotary'),
    ('eagle_parallel', 'chain', 'relative'),
    pytest.param('eagle_parallel', 'tree', 'learned', marks=pytest.mark.slow),
  ],
)
def test_q_is_the_law_after_each_path(kind, shape, positions):
  """Of what each node's path says and no other node, transformed as asked."""
  target = _target(positions)
  drafter = _drafter(kind, shape, target)
  tree = drafter.tree
  tokens = np.random.default_rng(0).integers(0, VOCAB, (4, 16), np.int32)
  draft = _first_draft(
    drafter,
    tokens,
    _features_of(target, tokens),
    MIXED.broadcast(4),
    np.arange(4, dtype=np.int32),
  )
  drafted, valid = np.asarray(draft.tokens), np.asarray(draft.valid)
  np.testing.assert_array_equal(drafted[:, 0], tokens[range(4), LENGTH - 1])

  where = [(row, node) for row in range(4) for node in tree.internal]
  row_r, node_r = np.array(where).T
  depth_r, root_r = np.array(tree.depths)[node_r], LENGTH[row_r] - 1
  texts = tokens[row_r]
  for text, root, (row, node) in zip(texts, root_r, where, strict=True):
    path = tree.paths[node][: tree.depths[node] + 1]
    text[root : root + len(path)] = drafted[row, path]
  hidden_rd = _hidden_by_hand(drafter, target, texts, root_r, depth_r)
  # Greedy rows report temperature 1 where a node of the level has several.
  several = {
    tree.depths[node] for node in tree.internal if len(tree.children(node)) > 1
  }
  plain = (row_r == 2) & np.isin(depth_r, list(several))
  sampling = jax.tree.map(
    lambda value, default: np.where(plain, default, value[row_r]),
    MIXED.broadcast(4),
    SamplingParams().broadcast(len(where)),
  )
  logits_rv = hidden_rd @ np.asarray(target.params['head'])
  q_rv = jax.jit(transforms.probabilities)(logits_rv, sampling)
  got = np.asarray(draft.q).reshape(len(where), VOCAB)
  np.testing.assert_allclose(got, q_rv, atol=3e-5)
  assert got[row_r == 0].max(axis=1).min() < 0.99  # not one-hots all
  for q_v, (row, node) in zip(got, where, strict=True):
    children = list(tree.children(node))
    said = drafted[row, children][valid[row, children]]
    assert (q_v[said] > 0).all() and len(set(said)) == len(said)
    assert len(said) == min(len(children), (q_v > 0).sum())


@pytest.mark.parametrize(
  'kind', ['medusa', 'medusa_parallel', 'eagle_parallel']
)
def test_a_law_does_not_depend_on_what_was_drafted(kind):
  """And masks or heads deeper than the draft are nothing to it."""
  target = _target()
  deep = tiny.trained(target, kind, ahead=8)
  tokens = np.random.default_rng(0).integers(0, VOCAB, (4, 16), np.int32)

  def propose(trained, seed):
    return _first_draft(
      trained_drafter(trained, target, 3),
      tokens,
      _features_of(target, tokens),
      SamplingParams(temperature=5.0).broadcast(4),
      np.arange(seed, seed + 4, dtype=np.int32),
    )

  one, other = propose(deep, 0), propose(deep, 4)
  np.testing.assert_array_equal(one.q, other.q)
  assert not np.array_equal(one.tokens[:, :-1], other.tokens[:, :-1])

  params = dict(deep.params)
  if 'mask_embedding' in params:
    params['mask_embedding'] = params['mask_embedding'][:2]
  else:
    params = {f'head_{j}': params[f'head_{j}'] for j in (1, 2, 3)}
  module = modules.make(kind, target.config, 3)
  shallow = dataclasses.replace(deep, module=module, params=params)
  cut = propose(shallow, 0)
  np.testing.assert_array_equal(cut.tokens, one.tokens)
  np.testing.assert_allclose(cut.q, one.q, atol=1e-6)


# Which token and which feature are read.

# What the LM head says after feature i, and what a drafter makes of it first.
_NEXT = np.array([3, 5, 7, 0, 6, 2, 1, 4])
_TURN = np.array([6, 0, 5, 2, 7, 3, 4, 1])
_MASKS = np.array([5, 1])
_ACCEPTED = np.array([0, 2, 3, 3], np.int32)
_SAID = np.array([4, 1, 6, 2], np.int32)


def _matrix(table):
  """e_i -> e_table[i], large."""
  return 9 * np.eye(len(table), dtype=np.float32)[table]


def _wired(kind, reads):
  """A target and a drafter that do nothing but to look up a table.

  The feature of token i is e_i, whatever stands before it, and so is its
  embedding. The drafter turns what it `reads`, 'features' or 'tokens'.
  """
  target = _target(vocab_size=len(_NEXT), width=len(_NEXT))
  params = _still(target.params) | {
    'embedding': np.eye(len(_NEXT), dtype=np.float32),
    'final_norm': {'scale': np.ones(len(_NEXT), np.float32)},
    'head': _matrix(_NEXT),
  }
  target = dataclasses.replace(target, params=params)
  trained = tiny.trained(target, kind, 3)
  own = _still(trained.params)
  if 'final_norm' in own:
    own['final_norm'] = params['final_norm']
  if 'mask_embedding' in own:
    own['mask_embedding'] = np.eye(len(_NEXT), dtype=np.float32)[_MASKS]
  if 'mask_feature' in own:
    own['mask_feature'] = own['mask_embedding'][0]
  if 'fuse' in own:
    own['fuse'] = _only(own['fuse'], reads, _matrix(_TURN))
  power = _TURN
  for j in (1, 2, 3):
    if f'head_{j}' in own:
      head = own[f'head_{j}']
      fuse = _only(
        head['fuse'], reads, _matrix(power if reads == 'features' else _TURN)
      )
      own[f'head_{j}'] = dict(fuse=fuse, fuse_bias=0 * head['fuse_bias'])
    power = _TURN[power]
  trained = dataclasses.replace(trained, params=own)
  return target, trained_drafter(trained, target, 3)


def _still(params):
  """The parameters with branches that add nothing."""

  def leaf(path, array):
    still = path[-1].key in ('o', 'down')
    return np.zeros_like(array) if still else np.asarray(array)

  return jax.tree_util.tree_map_with_path(leaf, params)


def _only(fuse, reads, matrix):
  """A `fuse` that reads the first part, the feature, or the last, a token."""
  part = (
    slice(0, len(matrix)) if reads == 'features' else slice(-len(matrix), None)
  )
  fuse = np.zeros_like(fuse)
  fuse[part] = matrix
  return fuse


def _by_table(kind, reads, before, root):
  """The three tokens drafted after this root; `before` is None at a start."""
  if kind == 'medusa_parallel':  # it has no table of its own
    return _NEXT[[root, *_MASKS]].tolist()
  if kind == 'eagle_parallel':
    masks = _MASKS if reads == 'tokens' else _MASKS[[0, 0]]
    rest = _NEXT[_TURN[masks]].tolist()
  else:
    rest = None
  if reads == 'features':
    if before is None:  # zeros: all tokens tie
      return [0, *(rest or (0, 0))]
    features = [_TURN[before]]
    for _ in range(2):
      features.append(_TURN[features[-1]])
    said = _NEXT[features].tolist()
  else:
    said, token = [], root
    for _ in range(3):
      token = int(_NEXT[_TURN[token]])
      said.append(token)
  return said[:1] + rest if rest else said


@jax.jit
def _two_rounds(drafter, tokens_bs):
  """Greedy drafts before and after a commit of `_ACCEPTED` and `_SAID`."""
  features_of = lambda tokens: jax.nn.one_hot(tokens, len(_NEXT))
  sampling = GREEDY.broadcast(4)
  keys = draw.row_keys(jnp.arange(4, dtype=jnp.int32))
  state = drafter.init(tokens_bs, LENGTH, features_of(tokens_bs), 32)
  first, state = drafter.propose(state, tokens_bs, LENGTH, sampling, keys)
  path = jnp.asarray(drafter.tree.paths)[_ACCEPTED]
  verdict = Verdict(_ACCEPTED, _ACCEPTED, path, jnp.asarray(_SAID))
  hidden = features_of(first.tokens)
  state = drafter.commit(state, first, verdict, LENGTH - 1, hidden)
  length = LENGTH + _ACCEPTED + 1
  tokens_bs = tokens_bs.at[np.arange(4), length - 1].set(_SAID)
  second, _ = drafter.propose(state, tokens_bs, length, sampling, keys)
  return first.tokens, second.tokens


@pytest.mark.parametrize(
  ('kind', 'reads'),
  [
    ('medusa', 'features'),
    ('hydra', 'features'),
    ('hydra', 'tokens'),
    ('eagle', 'features'),
    ('eagle', 'tokens'),
    ('medusa_parallel', 'tokens'),
    ('eagle_parallel', 'features'),
    ('eagle_parallel', 'tokens'),
  ],
)
def test_nothing_is_read_one_place_beside(kind, reads):
  """The token after the root comes of the root and the feature before it."""
  target, drafter = _wired(kind, reads)
  tokens = np.random.default_rng(1).integers(0, 8, (4, 16), np.int32)
  feature = np.asarray(_features_of(target, tokens))
  assert (feature.argmax(-1) == tokens).all() and (feature > 0.1).sum() == 64
  first, second = map(np.asarray, _two_rounds(drafter, jnp.asarray(tokens)))
  for row, length in enumerate(LENGTH):
    before = tokens[row, length - 2] if length > 1 else None
    root = tokens[row, length - 1]
    expected = [root, *_by_table(kind, reads, before, root)]
    assert first[row].tolist() == expected
    before, root = expected[_ACCEPTED[row]], _SAID[row]
    expected = [root, *_by_table(kind, reads, before, root)]
    assert second[row].tolist() == expected


# What is kept from round to round.

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1], [8, 2, 8, 1, 8], [5, 5]]
BUDGETS = [20, 9, 12, 1, 18]
# Near uniform laws, of which all is accepted, and greedy ones.
SAMPLING = SamplingParams(temperature=np.array([8.0, 30.0, 0.0, 1.0, 30.0]))


@pytest.mark.parametrize(
  ('kind', 'shape', 'positions'),
  [
    ('medusa', 'tree', 'rotary'),
    ('eagle', 'chain', 'rotary'),
    ('eagle', 'tree', 'relative'),
    pytest.param('eagle', 'tree', 'learned', marks=pytest.mark.slow),
    pytest.param(
      'medusa_parallel', 'chain', 'relative', marks=pytest.mark.slow
    ),
    ('eagle_parallel', 'chain', 'rotary'),
    ('eagle_parallel', 'tree', 'learned'),
  ],
)
def test_after_a_round_the_state_is_the_texts_own(kind, shape, positions):
  """As if the text had been a prompt: true features, no stale slot."""
  target = _target(positions)
  drafter = _drafter(kind, shape, target)
  job = _Job.make(
    target, PROMPTS, drafter, SHAPES[shape][2], SAMPLING, BUDGETS, 1, [],
    tree_attention=True,
  )  # fmt: skip
  state = job.prefill()
  start = jax.jit(lambda drafter, *args: drafter.init(*args), static_argnums=4)
  counts = []
  for _ in range(8):
    before = np.asarray(state.stats.accepted_at).sum(axis=1)
    active = ~np.asarray(state.done)
    state = _compiled().play_round(*job.static, *job.args, state)
    accepted = np.asarray(state.stats.accepted_at).sum(axis=1) - before
    going_on = ~np.asarray(state.done)
    counts += accepted[going_on].tolist()
    # The noise behind the text would be read by nothing but a mistake.
    at = np.arange(state.tokens.shape[1])[None]
    tokens = np.where(at < np.asarray(state.length)[:, None], state.tokens, 0)
    wanted = start(
      drafter,
      tokens,
      state.length,
      _features_of(target, tokens),
      tokens.shape[1],
    )
    if kind == 'medusa':
      caches, got, expected = [], state.drafter, wanted
    else:
      caches = zip(
        (*state.drafter.cache.keys, *state.drafter.cache.values),
        (*wanted.cache.keys, *wanted.cache.values),
        strict=True,
      )
      got, expected = state.drafter.hidden, wanted.hidden
    np.testing.assert_allclose(
      got[going_on], expected[going_on], atol=2e-5, rtol=1e-5
    )
    for one, other in caches:
      for row in np.flatnonzero(active):
        length = state.length[row]
        np.testing.assert_allclose(
          one[row, :, :length], other[row, :, :length], atol=1e-5, rtol=1e-5
        )
  assert {0, drafter.tree.depth} <= set(counts)
  if shape == 'tree':  # paths that do not stand side by side
    assert np.asarray(state.stats.taken_at)[:, 1:].any()


# Whole texts.

TEXTS = [[3, 1, 4, 1, 5], [7], [2, 7, 1]]


def _generate(drafter, verifier='token', prompts=TEXTS, **args):
  args = dict(max_new_tokens=16, stop_tokens=[]) | args
  return specsamp.generate(
    _target(), prompts, drafter=drafter, verifier=verifier, **args
  )


@pytest.fixture(scope='module')
def greedy():
  """What the target alone says at temperature 0."""
  texts = _generate(None, sampling=GREEDY).tokens
  assert all(len(set(text)) > 3 for text in texts)
  return texts


@texts
@pytest.mark.parametrize(
  'shape',
  # `test_loop_law` has greedy rows on chains.
  ['tree', pytest.param('chain', marks=pytest.mark.slow)],
)
def test_greedy_equals_autoregressive(kind, shape, greedy):
  got = _generate(_drafter(kind, shape), SHAPES[shape][2], sampling=GREEDY)
  assert got.tokens == greedy
  assert got.accepted_at.sum() > 0 and got.acceptance_rate < 1


@texts
@pytest.mark.parametrize(
  'alone',
  [False, pytest.param(True, marks=pytest.mark.slow)],
  ids=['beside others', 'alone'],
)
def test_a_row_says_the_same_in_any_batch(kind, alone):
  run = functools.partial(_generate, _drafter(kind, 'tree'), 'multi_candidate')
  prompts = np.array(TEXTS, object)
  seeds, budgets = np.array([4, 9, 2]), np.array([16, 9, 12])
  batch = lambda rows: run(
    prompts=prompts[rows].tolist(),
    seed=seeds[rows],
    max_new_tokens=budgets[rows],
  )
  together = batch([0, 1, 2])
  assert list(map(len, together.tokens)) == budgets.tolist()
  for rows in ([0], [1], [2]) if alone else ([2, 0, 1], [1, 2, 2]):
    got = batch(rows)
    for at, row in enumerate(rows):
      assert got.tokens[at] == together.tokens[row]
      for name in ('rounds', 'accepted_at', 'taken_at'):
        np.testing.assert_array_equal(
          getattr(got, name)[at], getattr(together, name)[row]
        )


def test_typical_acceptance_of_a_medusa_tree(greedy):
  """More is accepted than a lossless rule accepts; greedy rows are greedy."""
  drafter = _drafter('medusa', 'tree')
  sampling = SamplingParams(temperature=np.array([0.0, 1.5, 0.0]))
  run = functools.partial(_generate, drafter, sampling=sampling)
  typical = run(verification.make('typical_lossy'))
  lossless = run('multi_candidate')
  for row in (0, 2):
    assert typical.tokens[row] == greedy[row]
    assert typical.rounds[row] == lossless.rounds[row]
  assert len(typical.tokens[1]) == 16
  assert typical.rounds[1] < lossless.rounds[1]


# What is refused.


def _refused(message, call, *args, **kwargs):
  with pytest.raises(UserError, match=message) as error:
    call(*args, **kwargs)
  assert '\n' not in str(error.value)


@kinds
def test_another_target_is_refused(kind):
  target = _target()
  trained = tiny.trained(target, kind)
  for other, message in (
    (_target(width=8), 'of width 16, this one has 8$'),
    (_target(vocab_size=12), 'of vocab_size 11, this one has 12$'),
    (_target(seed=1), f'for the target {target.fingerprint}, this one is '),
  ):
    _refused(message, trained_drafter, trained, other, 3)
    _refused(
      'trained for the target',
      specsamp.generate,
      other,
      [[1]],
      drafter=trained_drafter(trained, target, 3),
      max_new_tokens=4,
    )


@kinds
def test_a_draft_deeper_than_its_heads_is_refused(kind):
  target = _target()
  trained = tiny.trained(target, kind, ahead=4)
  if kind == 'eagle':  # it goes on for ever
    assert trained_drafter(trained, target, 5).tree.depth == 5
    return
  message = f'^{kind}: drafts at most 4 tokens deep, got a draft of depth 5$'
  for shape in (5, TokenTree.branching((2, 1, 1, 1, 1))):
    _refused(message, trained_drafter, trained, target, shape)
  assert trained_drafter(trained, target, 4).tree.depth == 4


@pytest.mark.parametrize(
  ('kind', 'ahead', 'message'),
  [
    ('lookahead', 4, "got 'lookahead', expected one of medusa, hydra, eagle"),
    ('medusa', 0, '^ahead: got 0, expected at least 1$'),
    ('eagle', 0, '^ahead: got 0, expected at least 1$'),
    ('medusa_parallel', 1, '^ahead: got 1, expected at least 2$'),
    ('eagle_parallel', 1, '^ahead: got 1, expected at least 2$'),
  ],
)
def test_layers_that_cannot_be_made(kind, ahead, message):
  _refused(message, modules.make, kind, _target().config, ahead)


@kinds
def test_a_module_says_which_kind_made_it(kind):
  module = modules.make(kind, _target().config, 5)
  made_of = modules.kind_of(module)
  assert made_of == (kind, 1 if kind == 'eagle' else 5)
  assert modules.make(made_of[0], _target().config, made_of[1]) == module


def test_shapes_and_laws_that_are_refused():
  target = _target()
  trained = tiny.trained(target, 'medusa')
  _refused('at least 1, got 0', trained_drafter, trained, target, 0)
  _refused("got 'top'", trained_drafter, trained, target, 2, 'top')
  wide = TokenTree.branching((VOCAB + 1,))
  _refused(
    '^branching: got 12 candidates, more than the 11 tokens',
    _generate,
    trained_drafter(trained, target, wide),
    'multi_candidate',
  )
