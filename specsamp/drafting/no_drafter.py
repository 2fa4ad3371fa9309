"""No draft at all: with it, the loop is autoregressive sampling."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct

from specsamp.drafting.draft import Draft, ExtraTree, Law, TokenTree
from specsamp.drafting.drafter import root_of


@struct.dataclass
class NoDrafter:
  """The baseline of every speedup, in the same loop as every drafter."""

  tree: TokenTree = struct.field(pytree_node=False, default=TokenTree.chain(0))
  law: Law = struct.field(pytree_node=False, default='iid')
  extra_tree: ClassVar[ExtraTree] = ExtraTree()
  may_draft_nothing: ClassVar[bool] = False
  taps: ClassVar[tuple[int, ...]] = ()

  def check(self, target, batch) -> None:
    pass

  def init(self, tokens_bp, length_b, features_bpd, capacity):
    return ()

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    root = root_of(tokens_bs, length_b)
    draft = Draft(
      tokens=root,
      q=None,
      tree=self.tree,
      law=self.law,
      valid=jnp.ones(root.shape, bool),
    )
    return draft, state

  def commit(self, state, draft, verdict, root_b, scored):
    return state
