"""Trees drafted level by level, compared with passes over every path."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

from specsamp.drafting import TokenTree, model_drafter
from specsamp.drafting.drafter import after_prompts
from specsamp.errors import UserError
from specsamp.sampling import draw, transforms
from specsamp.sampling.transforms import SamplingParams

VOCAB = 7
LENGTH = np.array([3, 5, 1, 9], np.int32)
SAMPLING = SamplingParams(
  temperature=np.array([1.0, 0.7, 0.0, 1.0]),
  top_k=np.array([0, 0, 0, 2]),
  top_p=np.array([1.0, 0.9, 0.3, 1.0]),
)
TREES = {
  'chain': TokenTree.chain(3),
  # Leaves at every depth; nodes with one, two and three children in a level.
  'irregular': TokenTree((-1, 0, 0, 0, 1, 1, 2, 4, 4, 4, 5)),
}


_probabilities = jax.jit(transforms.probabilities)


def _propose(model, tree, law):
  drafter = model_drafter(model, tree, law)
  tokens = np.random.default_rng(0).integers(0, VOCAB, (4, 48), np.int32)

  @jax.jit
  def run():
    state = after_prompts(
      drafter, tokens[:, :16], LENGTH, np.zeros((4, 16, 1)), 48
    )
    keys = draw.row_keys(jnp.arange(4, dtype=jnp.int32))
    return drafter.propose(state, tokens, LENGTH, SAMPLING, keys)[0]

  return tokens, run()


@pytest.mark.parametrize(
  ('tree', 'law', 'positions'),
  [
    ('chain', 'iid', 'rotary'),
    ('irregular', 'iid', 'relative'),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        ('irregular', 'without_replacement', 'rotary'),
        ('irregular', 'top_plus_one', 'rotary'),
      )
    ),
  ],
)
def test_q_is_what_follows_each_path(tree, law, positions):
  model, tree = tiny.model(VOCAB, 1, positions=positions), TREES[tree]
  tokens, draft = _propose(model, tree, law)
  drafted, valid = np.asarray(draft.tokens), np.asarray(draft.valid)
  np.testing.assert_array_equal(drafted[:, 0], tokens[range(4), LENGTH - 1])
  whole = jax.jit(
    lambda t: model.transformer.apply({'params': model.params}, t).logits
  )
  for row in range(4):
    for i, node in enumerate(tree.internal):
      path = tree.paths[node][: tree.depths[node] + 1]
      text = np.zeros(16, np.int32)
      joined = [*tokens[row, : LENGTH[row] - 1], *drafted[row, path]]
      text[: len(joined)] = joined
      logits = whole(text[None])[:, len(joined) - 1]
      values = jax.tree.map(lambda v, row=row: v[row], SAMPLING.broadcast(4))
      num_children = [
        len(tree.children(n))
        for n in tree.internal
        if tree.depths[n] == tree.depths[node]
      ]
      if row == 2 and max(num_children) > 1:
        values = SamplingParams()  # greedy rows report temperature 1
      q = np.asarray(_probabilities(logits, values))[0]
      np.testing.assert_allclose(draft.q[row, i], q, atol=3e-5)
      children = list(tree.children(node))
      chosen = drafted[row, children][valid[row, children]]
      assert (np.asarray(draft.q)[row, i, chosen] > 0).all()
      if law != 'iid':
        assert len(set(chosen)) == len(chosen)
        support = (q > 0).sum()
        assert len(chosen) == min(len(children), support)
      if row == 2:  # the most probable ones, in order
        best = np.argsort(-q, kind='stable')[: len(children)]
        assert chosen.tolist() == best.tolist()
  # Rows without cuts, and greedy rows, have enough tokens.
  assert valid[0].all() and valid[2].all()


def test_candidates_of_siblings_and_rounds_share_no_bits():
  """Nodes of the same distribution draw different tokens."""
  model = tiny.model(200, 1)
  flat = jax.tree.map(jnp.zeros_like, model.params)  # uniform everywhere
  model = dataclasses.replace(model, params=flat)
  drafter = model_drafter(model, TokenTree.branching((4, 4)))
  tokens = np.zeros((1, 48), np.int32)
  keys = draw.row_keys(jnp.zeros((1,), jnp.int32))

  @jax.jit
  def run(at):
    state = after_prompts(drafter, tokens[:, :16], at, np.zeros((1, 16, 1)), 48)
    sampling = SamplingParams().broadcast(1)
    return drafter.propose(state, tokens, at, sampling, keys)[0].tokens[0, 1:]

  drawn = [token for at in (3, 4) for token in run(np.full(1, at, np.int32))]
  # Of 40 draws from 200 tokens about 36 differ.
  assert len(set(map(int, drawn))) >= 32


@pytest.mark.parametrize(
  ('shape', 'law', 'coupled', 'message'),
  [
    (0, 'iid', False, 'got 0, expected at least 1'),
    (TokenTree.chain(0), 'iid', False, 'a node below the root'),
    (TokenTree((-1, 0, 1, 0)), 'iid', False, 'breadth first'),
    ((4, 2), 'iid', False, 'a draft length or a TokenTree'),
    (2, 'sampled', False, "got 'sampled', expected one of iid"),
    (2, 'iid', True, 'is deterministic'),
  ],
)
def test_invalid_arguments(shape, law, coupled, message):
  with pytest.raises(UserError, match=message):
    model_drafter(tiny.model(VOCAB, 1), shape, law, coupled)
