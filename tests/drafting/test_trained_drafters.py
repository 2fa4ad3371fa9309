"""Drafters that read a target's features, against passes without caches.

A drafter that reads the token or the feature one place too early or late still
emits the target's texts: their distribution does not show it. So drafts,
distributions and caches are compared here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from readers import (
  GREEDY,
  SHAPES,
  VOCAB,
  check_greedy,
  check_states,
  features_of,
  kinds,
  make_drafter,
  make_target,
)
from testing import tiny

import specsamp
from specsamp.drafting import TokenTree
from specsamp.drafting.drafter import after_prompts
from specsamp.drafting.trained import kind_of, trained_drafter
from specsamp.errors import UserError
from specsamp.sampling import coupling, draw, transforms
from specsamp.sampling.transforms import SamplingParams

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
  state = after_prompts(drafter, tokens_bs, LENGTH, hidden_bsd, capacity)
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
  if kind in ('eagle', 'mtp', 'draft_model'):  # their outputs replace features
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


def _drafted(drafter, target):
  """Returns a draft, and q after each internal node, by hand.

  Returns:
    The draft; the row and the internal node of each q; and q, [R, V].
  """
  tree = drafter.tree
  tokens = np.random.default_rng(0).integers(0, VOCAB, (4, 16), np.int32)
  draft = _first_draft(
    drafter,
    tokens,
    features_of(target, tokens),
    MIXED.broadcast(4),
    np.arange(4, dtype=np.int32),
  )
  drafted = np.asarray(draft.tokens)
  np.testing.assert_array_equal(drafted[:, 0], tokens[range(4), LENGTH - 1])

  where = [(row, node) for row in range(4) for node in tree.internal]
  row_r, node_r = np.array(where).T
  depth_r, root_r = np.array(tree.depths)[node_r], LENGTH[row_r] - 1
  texts = tokens[row_r]
  for text, root, (row, node) in zip(texts, root_r, where, strict=True):
    path = tree.paths[node][: tree.depths[node] + 1]
    text[root : root + len(path)] = drafted[row, path]
  hidden_rd = _hidden_by_hand(drafter, target, texts, root_r, depth_r)
  # Greedy rows report temperature 1 if a node of the level has siblings, or if
  # nothing is drawn.
  plain = {
    tree.depths[node]
    for node in tree.internal
    if len(tree.children(node)) > 1 or drafter.law == 'deterministic'
  }
  sampling = jax.tree.map(
    lambda value, default: np.where(
      (row_r == 2) & np.isin(depth_r, list(plain)), default, value[row_r]
    ),
    MIXED.broadcast(4),
    SamplingParams().broadcast(len(where)),
  )
  logits_rv = hidden_rd @ np.asarray(target.params['head']).T
  if count := drafter.module.draft_vocab:
    logits_rv[:, np.asarray(drafter.params['draft_rows']) == count] = -1e30
  return draft, where, jax.jit(transforms.probabilities)(logits_rv, sampling)


@pytest.mark.parametrize(
  ('kind', 'shape', 'positions', 'num_layers', 'draft_vocab'),
  [
    ('medusa', 'tree', 'rotary', 1, 0),
    ('medusa', 'chain', 'rotary', 1, 9),
    ('hydra', 'tree', 'rotary', 1, 9),
    ('eagle', 'chain', 'rotary', 1, 0),
    ('eagle', 'tree', 'rotary', 1, 9),
    ('mtp', 'tree', 'rotary', 1, 0),
    ('draft_model', 'tree', 'learned', 2, 9),
    ('medusa_parallel', 'tree', 'rotary', 1, 9),
    ('eagle_parallel', 'chain', 'relative', 2, 0),
    ('eagle_parallel', 'tree', 'rotary', 1, 9),
  ],
)
def test_q_is_what_follows_each_path(
  kind, shape, positions, num_layers, draft_vocab
):
  """q depends on a node's path and on no other node."""
  target = make_target(positions)
  drafter = make_drafter(
    kind, shape, target, num_layers, draft_vocab=draft_vocab
  )
  draft, where, q_rv = _drafted(drafter, target)
  drafted, valid = np.asarray(draft.tokens), np.asarray(draft.valid)
  got = np.asarray(draft.q).reshape(len(where), VOCAB)
  np.testing.assert_allclose(got, q_rv, atol=3e-5)
  num_internal = len(drafter.tree.internal)
  assert got[:num_internal].max(axis=1).min() < 0.999  # not one-hots all
  for q_v, (row, node) in zip(got, where, strict=True):
    children = list(drafter.tree.children(node))
    chosen = drafted[row, children][valid[row, children]]
    assert (q_v[chosen] > 0).all() and len(set(chosen)) == len(chosen)
    assert len(chosen) == min(len(children), (q_v > 0).sum())


@pytest.mark.parametrize(
  ('kind', 'shape'),
  [('medusa', 'chain'), ('medusa_parallel', 'tree'), ('mtp', 'tree')],
)
def test_coupled_candidates_are_the_first_of_their_races(kind, shape):
  """The races are the target's: of the position, not of the round."""
  target = make_target()
  drafter = make_drafter(kind, shape, target, coupled=True)
  draft, where, q_rv = _drafted(drafter, target)
  keys = draw.row_keys(np.arange(4, dtype=np.int32))
  at_bs = np.tile(np.arange(16, dtype=np.int32), (4, 1))
  handicap_bsv = np.asarray(coupling.handicaps(keys, at_bs, VOCAB))
  for q_v, (row, node) in zip(np.asarray(q_rv), where, strict=True):
    handicap_v = handicap_bsv[row, LENGTH[row] + drafter.tree.depths[node]]
    # Greedy rows run no race.
    order = np.argsort(-q_v if row == 2 else -q_v / handicap_v, kind='stable')
    children = list(drafter.tree.children(node))
    count = min(len(children), (q_v > 0).sum())
    chosen = np.asarray(draft.tokens)[row, children]
    np.testing.assert_array_equal(chosen[:count], order[:count])
    is_valid = np.arange(len(children)) < count
    np.testing.assert_array_equal(draft.valid[row, children], is_valid)


# The state from round to round.


@pytest.mark.parametrize(
  ('kind', 'shape', 'positions', 'num_layers'),
  [
    ('medusa', 'tree', 'rotary', 1),
    ('eagle', 'tree', 'relative', 1),
    ('eagle', 'dynamic', 'rotary', 1),
    ('draft_model', 'chain', 'rotary', 2),
    ('eagle_parallel', 'tree', 'learned', 2),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        ('eagle', 'chain', 'learned', 2),
        ('medusa_parallel', 'chain', 'relative', 1),
        ('eagle_parallel', 'dynamic', 'rotary', 1),
      )
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
    ('dspark', 'tree'),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        ('dspark', 'dynamic'),
        ('eagle3', 'dynamic'),
        ('peagle', 'dynamic'),
        ('eagle', 'tree'),
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


# Texts.

TEXTS = [[3, 1, 4, 1, 5], [7], [2, 7, 1]]


def _generate(drafter, prompts=TEXTS, **args):
  args = dict(max_new_tokens=16, stop_tokens=[]) | args
  return specsamp.generate(make_target(), prompts, drafter=drafter, **args)


def test_greedy_text_is_the_targets_and_a_row_the_same_in_any_batch():
  """The states of the other kinds are compared above."""
  drafter = make_drafter('hydra', 'tree')
  out = _generate(drafter, sampling=GREEDY)
  check_greedy(make_target(), TEXTS, out.tokens)
  assert all(len(set(text)) > 3 for text in out.tokens)
  assert out.num_accepted_per_pos.sum() > 0 and out.acceptance_rate < 1

  prompts = np.array(TEXTS, object)
  seeds, budgets = np.array([4, 9, 2]), np.array([16, 9, 12])
  run = lambda rows: _generate(
    drafter,
    prompts=prompts[rows].tolist(),
    seed=seeds[rows],
    max_new_tokens=budgets[rows],
  )
  together = run([0, 1, 2])
  assert list(map(len, together.tokens)) == budgets.tolist()
  for rows in ([2, 0, 1], [1, 2, 2]):
    out = run(rows)
    for at, row in enumerate(rows):
      assert out.tokens[at] == together.tokens[row]
      for name in ('rounds', 'num_accepted_per_pos', 'num_accepted_per_rank'):
        np.testing.assert_array_equal(
          getattr(out, name)[at], getattr(together, name)[row]
        )


# Refusals.


def test_another_target_is_refused():
  target = make_target()
  trained = tiny.trained(target, 'eagle')
  for other, message in (
    (make_target(width=8), 'of width 16, this one has 8$'),
    (make_target(vocab_size=12), 'of vocab_size 11, this one has 12$'),
    (make_target(seed=1), f'for the target {target.fingerprint}, this one is '),
  ):
    with pytest.raises(UserError, match=message):
      trained_drafter(trained, other, 3)
    with pytest.raises(UserError, match='^drafter: trained for the target'):
      trained_drafter(trained, target, 3).check(other, 1)


@kinds
def test_the_depth_of_a_kind(kind):
  target = make_target(num_layers=tiny.layers(kind))
  trained = tiny.trained(target, kind, ahead=4)
  assert kind_of(trained.module).name == kind
  assert trained_drafter(trained, target, 4).tree.depth == 4
  if trained.module.ahead is None:  # they read their outputs
    assert trained_drafter(trained, target, 5).tree.depth == 5
    return
  message = f'^{kind}: drafts at most 4 tokens deep, got a draft of depth 5$'
  for shape in (5, TokenTree.branching((2, 1, 1, 1, 1))):
    with pytest.raises(UserError, match=message):
      trained_drafter(trained, target, shape)


@pytest.mark.parametrize(
  ('shape', 'law', 'message'),
  [
    (0, 'iid', 'got 0, expected at least 1'),
    (2, 'top', "got 'top', expected one of"),
    (TokenTree.branching((VOCAB + 1,)), 'iid', 'got 12 candidates, more than'),
    (SHAPES['dynamic'][0], 'deterministic', 'got a dynamic tree$'),
  ],
)
def test_shapes_and_laws_that_are_refused(shape, law, message):
  target = make_target()
  trained = tiny.trained(target, 'medusa')
  coupled = law == 'deterministic'
  with pytest.raises(UserError, match=message):
    trained_drafter(trained, target, shape, law, coupled).check(target, 1)
