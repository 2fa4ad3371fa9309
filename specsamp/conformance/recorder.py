"""A drafter that records its drafts."""

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
  """Wrapper of a drafter that keeps the last draft in its state."""

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
    draft, new_state = self.drafter.propose(
      state[0], tokens_bs, length_b, sampling, keys_b
    )
    return draft, (new_state, draft)

  def commit(self, state, draft, verdict, root_b, scored):
    new_state = self.drafter.commit(state[0], draft, verdict, root_b, scored)
    return new_state, state[1]


def draft_of(request: Request, state: DecodeState) -> Draft:
  """Returns the last draft of a request with a `Recorder`, on the host."""
  draft = meshes.fetch(state.drafter[1])
  return jax.tree.map(lambda rows: rows[: request.batch], draft)
