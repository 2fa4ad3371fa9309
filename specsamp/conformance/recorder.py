"""A drafter that shows what it drafted, round by round."""

import jax
import jax.numpy as jnp
from flax import struct

from specsamp.decoding.request import Request
from specsamp.decoding.state import DecodeState
from specsamp.drafting.draft import Draft, ExtraTree, Law, TokenTree
from specsamp.drafting.drafter import Drafter
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes


@struct.dataclass
class Recorder(Drafter):
  """Drafts as another one does, and keeps its last draft in its state."""

  drafter: Drafter
  tree: TokenTree = struct.field(pytree_node=False)
  law: Law = struct.field(pytree_node=False)
  extra_tree: ExtraTree = struct.field(pytree_node=False)
  taps: tuple[int, ...] = struct.field(pytree_node=False)

  @classmethod
  def of(cls, drafter: Drafter) -> 'Recorder':
    return cls(
      drafter, drafter.tree, drafter.law, drafter.extra_tree, drafter.taps
    )

  def check(self, target, batch):
    self.drafter.check(target, batch)

  def init(self, tokens_bp, length_b, features_bpd, capacity):
    batch = len(length_b)
    state = self.drafter.init(tokens_bp, length_b, features_bpd, capacity)
    draft, _ = jax.eval_shape(
      self.drafter.propose,
      state,
      jax.ShapeDtypeStruct((batch, capacity), jnp.int32),
      length_b,
      jax.tree.map(jnp.asarray, SamplingParams().broadcast(batch)),
      draw.row_keys(jnp.zeros((batch,), jnp.int32)),
    )
    return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), draft)

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    draft, own = self.drafter.propose(
      state[0], tokens_bs, length_b, sampling, keys_b
    )
    return draft, (own, draft)

  def commit(self, state, draft, verdict, root_b, scored):
    own = self.drafter.commit(state[0], draft, verdict, root_b, scored)
    return own, state[1]


def draft_of(request: Request, state: DecodeState) -> Draft:
  """The draft of the last round, on the host, of a request of a `Recorder`."""
  draft = meshes.fetch(state.drafter[1])
  return jax.tree.map(lambda rows: rows[: request.batch], draft)
