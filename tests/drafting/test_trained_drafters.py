"""Drafters that read a target's features, against passes without caches.

A drafter that reads the token or the feature one place too early or late still
emits the target's texts: their distribution does not show it. So drafts,
distributions and caches are compared here.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from readers import (
  GREEDY,
  SHAPES,
  VOCAB,
  check_states,
  features_of,
  make_drafter,
  make_target,
)
from testing import tiny

from specsamp.drafting.drafter import Scored
from specsamp.drafting.trained import kind_of, make, trained_drafter
from specsamp.errors import UserError
from specsamp.sampling import draw, transforms
from specsamp.sampling.transforms import SamplingParams
from specsamp.verification import Verdict

# The distributions of a draft.

LENGTH = np.array([3, 5, 1, 9], np.int32)
MIXED = SamplingParams(
  temperature=np.array([1.0, 0.7, 0.0, 1.0]),
  top_k=np.array([0, 0, 0, 2]),
  top_p=np.array([1.0, 0.9, 0.3, 1.0]),
)


@jax.jit
def _first_draft(drafter, tokens_bs, hidden_bsd, sampling, seeds_b):
  """Returns the draft of the first round, for rows of these lengths."""
  capacity = tokens_bs.shape[1] + 16
  state = drafter.init(tokens_bs, LENGTH, hidden_bsd, capacity)
  keys = draw.row_keys(seeds_b)
  return drafter.propose(state, tokens_bs, LENGTH, sampling, keys)[0]


def _hidden_by_hand(drafter, target, tokens_rs, root_r, depth_r):
  """Returns the LM head's input after paths: [R, D].

  Args:
    drafter: of any kind.
    target: the model that it drafts for.
    tokens_rs: text, and from `root` a path through the draft.
    root_r: position of the root in each row.
    depth_r: number of drafted tokens on each row's path.
  """
  kind = kind_of(drafter.module).name
  params = jax.tree.map(np.asarray, drafter.params)
  feature_rsd = np.asarray(features_of(target, tokens_rs))
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
      head = params[f'head_{depth + 1}']
      fused = head['fuse'] @ np.concatenate(read) + head['fuse_bias']
      result.append(feature + fused / (1 + np.exp(-fused)))
    return np.stack(result)

  module, target_head = drafter.module, drafter.target_head
  at_rs = np.broadcast_to(
    np.arange(tokens_rs.shape[1], dtype=np.int32), tokens_rs.shape
  )
  variables = {'params': drafter.params}

  @jax.jit
  def layer(before_rsd, masks_rsd, is_mask_rs):
    embedded_rsd = target_head.embed(tokens_rs) + target_head.place(at_rs)
    x_rsd = module.apply(variables, embedded_rsd, before_rsd, method='text')
    x_rsd = jnp.where(is_mask_rs[:, :, None], masks_rsd, x_rsd)
    return module.apply(variables, x_rsd, at_rs)[0]

  masks_rsd = np.zeros_like(before_rsd)
  is_mask_rs = np.zeros(tokens_rs.shape, bool)
  if kind == 'eagle':  # its outputs replace features
    for step in range(max(depth_r)):
      out_rsd = np.asarray(layer(before_rsd, masks_rsd, is_mask_rs))
      before_rsd[rows, root_r + step + 1] = out_rsd[rows, root_r + step]
  else:
    for mask in range(module.num_masks):
      index = np.full(1, mask, np.int32)
      place = target_head.place(root_r[:, None] + index[None] + 1)
      x_r1d = module.apply(variables, index, place, method='masks')
      masks_rsd[rows, root_r + mask + 1] = np.asarray(x_r1d)[:, 0]
      is_mask_rs[rows, root_r + mask + 1] = True
  out_rsd = np.asarray(layer(before_rsd, masks_rsd, is_mask_rs))
  return out_rsd[rows, root_r + depth_r]


@pytest.mark.parametrize(
  ('kind', 'shape', 'positions', 'num_layers'),
  [
    ('medusa', 'tree', 'rotary', 1),
    ('hydra', 'tree', 'rotary', 1),
    ('eagle', 'chain', 'rotary', 1),
    pytest.param('eagle', 'tree', 'relative', 2, marks=pytest.mark.slow),
    pytest.param('eagle', 'tree', 'learned', 1, marks=pytest.mark.slow),
    ('medusa_parallel', 'tree', 'rotary', 1),
    ('eagle_parallel', 'chain', 'relative', 2),
    pytest.param(
      'eagle_parallel', 'tree', 'learned', 1, marks=pytest.mark.slow
    ),
  ],
)
def test_q_is_what_follows_each_path(kind, shape, positions, num_layers):
  """q depends on a node's path and on no other node."""
  target = make_target(positions)
  drafter = make_drafter(kind, shape, target, num_layers)
  tree = drafter.tree
  tokens = np.random.default_rng(0).integers(0, VOCAB, (4, 16), np.int32)
  draft = _first_draft(
    drafter,
    tokens,
    features_of(target, tokens),
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
  # Greedy rows report temperature 1 if a node of the level has siblings.
  branching = {
    tree.depths[node] for node in tree.internal if len(tree.children(node)) > 1
  }
  plain = (row_r == 2) & np.isin(depth_r, list(branching))
  sampling = jax.tree.map(
    lambda value, default: np.where(plain, default, value[row_r]),
    MIXED.broadcast(4),
    SamplingParams().broadcast(len(where)),
  )
  logits_rv = hidden_rd @ np.asarray(target.params['head']).T
  q_rv = jax.jit(transforms.probabilities)(logits_rv, sampling)
  got = np.asarray(draft.q).reshape(len(where), VOCAB)
  np.testing.assert_allclose(got, q_rv, atol=3e-5)
  assert got[row_r == 0].max(axis=1).min() < 0.999  # not one-hots all
  for q_v, (row, node) in zip(got, where, strict=True):
    children = list(tree.children(node))
    chosen = drafted[row, children][valid[row, children]]
    assert (q_v[chosen] > 0).all() and len(set(chosen)) == len(chosen)
    assert len(chosen) == min(len(children), (q_v > 0).sum())


@pytest.mark.parametrize('kind', ['medusa', 'eagle_parallel'])
def test_q_does_not_depend_on_what_was_drafted(kind):
  """It does not depend on masks or heads deeper than the draft either."""
  target = make_target()
  deep = tiny.trained(target, kind, ahead=8)
  tokens = np.random.default_rng(0).integers(0, VOCAB, (4, 16), np.int32)

  def propose(trained, seed):
    return _first_draft(
      trained_drafter(trained, target, 3),
      tokens,
      features_of(target, tokens),
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
  module = make(kind, target.config, 3)
  shallow = dataclasses.replace(deep, module=module, params=params)
  cut = propose(shallow, 0)
  np.testing.assert_array_equal(cut.tokens, one.tokens)
  np.testing.assert_allclose(cut.q, one.q, atol=1e-6)


# Which token and which feature are read.

# Token that the LM head predicts after feature i, and a drafter's table.
_NEXT = np.array([3, 5, 7, 0, 6, 2, 1, 4])
_TURN = np.array([6, 0, 5, 2, 7, 3, 4, 1])
_MASKS = np.array([5, 1])
_ACCEPTED = np.array([0, 2, 3, 3], np.int32)
_NEXT_TOKENS = np.array([4, 1, 6, 2], np.int32)


def _matrix(table):
  """e_i -> e_table[i], large."""
  return 9 * np.eye(len(table), dtype=np.float32)[table]


def _wired(kind, reads):
  """Returns a target and a drafter that do nothing but look up a table.

  The feature of token i is e_i, whatever precedes it, and so is its embedding.
  The drafter looks up what it `reads`, 'features' or 'tokens'.
  """
  target = make_target(vocab_size=len(_NEXT), width=len(_NEXT))
  params = _still(target.params) | {
    'embedding': np.eye(len(_NEXT), dtype=np.float32),
    'final_norm': {'scale': np.ones(len(_NEXT), np.float32)},
    'head': _matrix(_NEXT).T,
  }
  target = dataclasses.replace(target, params=params)
  trained = tiny.trained(target, kind, 3)
  params = _still(trained.params)
  if 'final_norm' in params:
    params['final_norm'] = target.params['final_norm']
  if 'mask_embedding' in params:
    params['mask_embedding'] = np.eye(len(_NEXT), dtype=np.float32)[_MASKS]
  if 'mask_feature' in params:
    params['mask_feature'] = params['mask_embedding'][0]
  if 'fuse' in params:
    params['fuse'] = _only(params['fuse'], reads, _matrix(_TURN))
  power = _TURN
  for j in (1, 2, 3):
    if f'head_{j}' in params:
      head = params[f'head_{j}']
      fuse = _only(
        head['fuse'], reads, _matrix(power if reads == 'features' else _TURN)
      )
      params[f'head_{j}'] = dict(fuse=fuse, fuse_bias=0 * head['fuse_bias'])
    power = _TURN[power]
  trained = dataclasses.replace(trained, params=params)
  return target, trained_drafter(trained, target, 3)


def _still(params):
  """Returns the parameters with branches that add nothing."""

  def leaf(path, array):
    still = path[-1].key in ('o', 'down')
    return np.zeros_like(array) if still else np.asarray(array)

  return jax.tree_util.tree_map_with_path(leaf, params)


def _only(fuse, reads, matrix):
  """Returns a `fuse` that reads the first part, a feature, or a token."""
  part = (
    slice(0, len(matrix)) if reads == 'features' else slice(-len(matrix), None)
  )
  fuse = np.zeros_like(fuse)
  fuse[:, part] = matrix.T
  return fuse


def _by_table(kind, reads, before, root):
  """Returns the three tokens drafted after a root; `before` may be None."""
  if kind == 'medusa_parallel':  # it has no table
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
    drafted = _NEXT[features].tolist()
  else:
    drafted, token = [], root
    for _ in range(3):
      token = int(_NEXT[_TURN[token]])
      drafted.append(token)
  return drafted[:1] + rest if rest else drafted


@jax.jit
def _two_rounds(drafter, tokens_bs):
  """Returns greedy drafts before and after `_ACCEPTED` and `_NEXT_TOKENS`."""
  features_of = lambda tokens: jax.nn.one_hot(tokens, len(_NEXT))
  sampling = GREEDY.broadcast(4)
  keys = draw.row_keys(jnp.arange(4, dtype=jnp.int32))
  state = drafter.init(tokens_bs, LENGTH, features_of(tokens_bs), 32)
  first, state = drafter.propose(state, tokens_bs, LENGTH, sampling, keys)
  path = jnp.asarray(drafter.tree.paths)[_ACCEPTED]
  verdict = Verdict(_ACCEPTED, _ACCEPTED, path, jnp.asarray(_NEXT_TOKENS))
  scored = Scored(features_of(first.tokens), extra_logits=None, active=None)
  state = drafter.commit(state, first, verdict, LENGTH - 1, scored)
  length = LENGTH + _ACCEPTED + 1
  tokens_bs = tokens_bs.at[np.arange(4), length - 1].set(_NEXT_TOKENS)
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
def test_nothing_is_read_one_place_off(kind, reads):
  """The token after the root depends on the root and the feature before it."""
  target, drafter = _wired(kind, reads)
  tokens = np.random.default_rng(1).integers(0, 8, (4, 16), np.int32)
  feature = np.asarray(features_of(target, tokens))
  assert (feature.argmax(-1) == tokens).all() and (feature > 0.1).sum() == 64
  first, second = map(np.asarray, _two_rounds(drafter, jnp.asarray(tokens)))
  for row, length in enumerate(LENGTH):
    before = tokens[row, length - 2] if length > 1 else None
    root = tokens[row, length - 1]
    expected = [root, *_by_table(kind, reads, before, root)]
    assert first[row].tolist() == expected
    before, root = expected[_ACCEPTED[row]], _NEXT_TOKENS[row]
    expected = [root, *_by_table(kind, reads, before, root)]
    assert second[row].tolist() == expected


# The state from round to round.


@pytest.mark.parametrize(
  ('kind', 'shape', 'positions', 'num_layers'),
  [
    ('medusa', 'tree', 'rotary', 1),
    ('eagle', 'chain', 'rotary', 1),
    ('eagle', 'tree', 'relative', 1),
    pytest.param('eagle', 'tree', 'learned', 2, marks=pytest.mark.slow),
    pytest.param(
      'medusa_parallel', 'chain', 'relative', 1, marks=pytest.mark.slow
    ),
    pytest.param(
      'eagle_parallel', 'chain', 'rotary', 1, marks=pytest.mark.slow
    ),
    ('eagle_parallel', 'tree', 'learned', 2),
    ('medusa', 'dynamic', 'rotary', 1),
    ('eagle', 'dynamic', 'rotary', 1),
    ('eagle_parallel', 'dynamic', 'rotary', 1),
    pytest.param(
      'medusa_parallel', 'dynamic', 'rotary', 1, marks=pytest.mark.slow
    ),
  ],
)
def test_after_a_round_the_state_is_the_texts_own(
  kind, shape, positions, num_layers
):
  target = make_target(positions)
  check_states(target, make_drafter(kind, shape, target, num_layers))


# Published weights compute differently, but keep the same state. They are
# compared with torch in checkpoints/test_heads.py.


def _published(kind, shape, num_layers=7):
  """Returns a target and a drafter, with EAGLE-3's three taps all different."""
  target = tiny.model(VOCAB, 1, num_layers=num_layers)
  tree, law = SHAPES[shape]
  return target, trained_drafter(
    tiny.published(target, kind), target, tree, law
  )


@pytest.mark.parametrize(
  ('kind', 'shape'),
  [
    ('eagle3', 'tree'),
    ('peagle', 'tree'),
    ('peagle', 'dynamic'),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        ('eagle3', 'chain'),
        ('eagle3', 'dynamic'),
        ('eagle', 'tree'),
        ('eagle', 'chain'),
        ('medusa', 'chain'),
      )
    ),
  ],
)
def test_the_state_of_published_drafters(kind, shape):
  num_layers = 7 if kind in ('eagle3', 'peagle') else 1
  check_states(*_published(kind, shape, num_layers))


def test_taps_of_a_target():
  assert _published('eagle3', 'chain')[1].taps == (2, 3, 4)
  assert _published('eagle3', 'chain', 6)[1].taps == (2, 3, 3)
  assert _published('eagle', 'chain')[1].taps == ()
  with pytest.raises(UserError, match='of 5 layers, expected at least 6$'):
    _published('eagle3', 'chain', 5)


@pytest.mark.parametrize('kind', ['medusa', 'eagle', 'eagle3'])
def test_a_published_drafter_serves_one_target(kind):
  """Its folder names no target; from then on it has the one it was made for."""
  _, drafter = _published(kind, 'chain')
  other = tiny.model(VOCAB, 2, num_layers=7)
  with pytest.raises(UserError, match='^drafter: trained for the target'):
    drafter.check(other, 1)
