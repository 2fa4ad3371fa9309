"""Empty drafts, with which the loop is autoregressive sampling."""

import jax.numpy as jnp
from flax import struct

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.drafting.drafter import Drafter, root_of


@struct.dataclass
class NoDrafter(Drafter):
  """Baseline of every speedup: drafts nothing, in the same loop."""

  tree: TokenTree = struct.field(pytree_node=False, default=TokenTree.chain(0))
  law: Law = struct.field(pytree_node=False, default='iid')

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    root_b1 = root_of(tokens_bs, length_b)
    draft = Draft(
      tokens=root_b1,
      q=None,
      tree=self.tree,
      law=self.law,
      valid=jnp.ones(root_b1.shape, bool),
    )
    return draft, state
