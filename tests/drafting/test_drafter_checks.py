"""Checks of user-defined drafters: missing parts and the first draft."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from testing import tiny

from specsamp.decoding.request import Request
from specsamp.drafting import Drafter, TokenTree, candidates, checks
from specsamp.drafting.drafter import root_of
from specsamp.errors import UserError

VOCAB = 7
CHAIN = TokenTree.chain(2)


@struct.dataclass
class NoPropose(Drafter):
  tree: TokenTree = struct.field(pytree_node=False, default=CHAIN)
  law = 'iid'


@struct.dataclass
class Own(Drafter):
  """Drafts token 1, which has all of q, and has a fault."""

  fault: str = struct.field(pytree_node=False, default='')
  tree: Any = struct.field(pytree_node=False, default=CHAIN)
  law: Any = struct.field(pytree_node=False, default='iid')
  static: Any = struct.field(pytree_node=False, default=())
  traced: Any = ()

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    batch, depth = len(length_b), self.tree.depth
    q_bgv = jnp.zeros((batch, depth, VOCAB)).at[:, :, 1].set(1.0)
    tokens_bg = jnp.ones((batch, depth), jnp.int32)
    root_b1 = root_of(tokens_bs, length_b)
    match self.fault:
      case 'sum':
        q_bgv = q_bgv * 0.5
      case 'zero':
        tokens_bg = tokens_bg + 1
      case 'far':
        tokens_bg = tokens_bg + VOCAB
      case 'root':
        root_b1 = root_b1 + 1
      case 'flat root':
        root_b1 = root_b1[:, 0]
      case 'wide':
        q_bgv = jnp.pad(q_bgv, ((0, 0), (0, 0), (0, 1)))
      case 'raises':
        q_bgv = q_bgv + self.gone
    draft = candidates.draft_of(
      self.tree,
      'deterministic' if self.fault == 'law' else self.law,
      root_b1,
      tokens_bg,
      jnp.ones(tokens_bg.shape, bool),
      q_bgv,
    )
    return (draft, state) if self.fault != 'lone' else (draft.tokens, state)


class NoPytree(Drafter):
  tree, law = CHAIN, 'iid'

  def propose(self, *args):
    """As a drafter's."""


@pytest.mark.parametrize(
  ('drafter', 'line'),
  [
    (object(), 'drafter: got a object, expected an object of a class'),
    (Own, 'drafter: got a type, expected an object of a class'),
    (NoPropose(), 'drafter NoPropose: has no method propose'),
    (NoPytree(), 'drafter NoPytree: got no pytree, expected a flax.struct'),
    (Own(tree=3), 'drafter Own: tree: got 3, expected a TokenTree'),
    (Own(law='idd'), "drafter Own: law: got 'idd', .*; did you mean iid?"),
    (Own(traced='a'), r'drafter Own: \.traced is a str, expected an array'),
    (
      Own(static=[]),
      "drafter Own: static: unhashable type: 'list'; prog",
    ),
  ],
)
def test_missing_parts(drafter, line):
  with pytest.raises(UserError, match=line):
    checks.check_parts(drafter)
  checks.check_parts(Own(traced=np.ones(2)))


@pytest.mark.parametrize(
  ('fault', 'line'),
  [
    (
      'sum',
      r'Own, tried after prompts of 3 and 1 tokens: q after node 0 is not '
      r'a distribution: got rows that sum to \[0.5, ',
    ),
    ('zero', 'drafted a token after node 0 whose q is 0'),
    ('far', r'drafted tokens outside of the vocabulary: \[2 8 8\]'),
    ('root', 'drafted a root that is not the last token'),
    ('flat root', r'root_b1: got shape \(2,\), expected \[B, 1\] .* root_of'),
    ('wide', r"draft.q: got \(\(2, 2, 8\), 'float32'\), expected \(2, 2, 7\)"),
    ('law', "drafted 'deterministic' on 3 nodes, expected its law 'iid' on 3"),
    ('lone', 'propose: got a .*, expected a Draft and the state'),
    (
      'raises',
      'first draft failed: AttributeError: .*gone.*test_drafter',
    ),
  ],
)
def test_an_invalid_first_draft(fault, line):
  target = tiny.model(VOCAB, 0)
  with pytest.raises(UserError, match=line):
    checks.check_first_draft(Own(fault), target)


def test_a_first_draft():
  checks.check_first_draft(Own(), tiny.model(VOCAB, 0))


def test_a_plain_number_is_a_traced_value():
  """Programs depend on its type, not on its value."""
  target = tiny.model(VOCAB, 0)
  drafters = [Own(traced=x) for x in (0.5, 0.7, 3, np.float32(0.5))]
  make = lambda drafter: Request.make(target, [[1]], drafter, max_new_tokens=4)
  keys = [make(drafter).program_key for drafter in drafters]
  assert keys[0] == keys[1] and len(set(keys)) == 3
