"""What the decoding loop asks of a drafter."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting.draft import Draft, ExtraTree, Law, TokenTree, Verdict
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes

CATCH_UP = 8  # tokens that a drafter reads at once, see `Drafter.catch_up`


class Scored(NamedTuple):
  """What a drafter learns from the target's pass.

  Attributes:
    features: the target's at every node: [B, N, D], or [B, N, taps * D].
    extra_logits: float32 [B, K, V], after the K extra tokens that are read.
    active: bool [B], the rows of a text that goes on; what the pass has of the
      others is noise.
  """

  features: jax.Array
  extra_logits: jax.Array
  active: jax.Array


@struct.dataclass
class OfBatch:
  """Base of what a state holds of a batch, whichever rows it has.

  An engine keeps it when a text takes the place of another.
  """


class Drafter:
  """Proposes a token tree a round.

  A drafter derives from this and is a pytree (`flax.struct.dataclass`): its
  parameters are leaves, traced; everything that shapes the program is static.
  Its state is a pytree that the loop carries and donates. Here it has none, and
  reads nothing of the target.

  Attributes:
    tree: shape of every draft, static.
    law: how its tokens are chosen, static.
    extra_tree: tokens that go through the target beside the draft, static.
    passes: numbers of nodes, ascending, the last all of the tree's: the
      target's pass is over the first of them that hold what any row has
      drafted, and `commit` is given a draft of these nodes alone. Static.
    reads_features: whether it reads any of the target's, static.
    taps: layers of the target whose input it reads as features, side by side;
      () is for the output of the final norm. Static.
    mixes_rows: whether what a row drafts depends on what other rows, or the
      texts before it, have drawn.
      Rows of one seed would then know random bits that they are yet to use, so
      that the loop gives each its own. Static.
  """

  tree: TokenTree
  law: Law
  extra_tree = ExtraTree()
  reads_features: ClassVar[bool] = True
  taps: ClassVar[tuple[int, ...]] = ()
  mixes_rows: ClassVar[bool] = False

  @property
  def passes(self) -> tuple[int, ...]:
    return (self.tree.size,)

  @property
  def room(self) -> int:
    """Slots that a round may take after the text: those of all its nodes."""
    return self.tree.with_extra(self.extra_tree).size

  @property
  def rounds_differ(self) -> bool:
    """Whether what a round costs depends on its text: it has no parts that
    could be timed by themselves."""
    return len(self.passes) > 1

  def parts(self) -> Sequence['Drafter']:
    """As it is, or so that the first round of each runs another part of the
    one program: together they run all that rounds may choose from."""
    return (self,)

  def check(self, target: LanguageModel, batch: int) -> None:
    """Raises `UserError` if it cannot draft for this target and batch size."""

  def with_params(self, params: Any = None, target: Any = None) -> 'Drafter':
    """The drafter with other parameters; here it has none.

    Args:
      params: its own, in a tree as they are; None leaves them.
      target: the target's, of which some drafters share a part; likewise.
    """
    if params is not None:
      raise UserError(
        f'drafter: got parameters, and {type(self).__name__} has none'
      )
    return self

  def for_engine(self) -> 'Drafter':
    """It where other texts take the place of those that end; as it is."""
    return self

  def init(self, tokens_bp, length_b, features_bpd, capacity: int) -> Any:
    """State after the prompt.

    Args:
      tokens_bp: int [B, P], prompts, padded on the right.
      length_b: int [B], their lengths.
      features_bpd: the target's features; noise past a row's length.
      capacity: slots that the text and `room` may take.
    """
    return ()

  def propose(
    self, state, tokens_bs, length_b, sampling: SamplingParams, keys_b
  ) -> tuple[Draft, Any]:
    """Drafts after the last committed token, the root.

    Args:
      state: the drafter's.
      tokens_bs: int [B, S], the text so far, `length_b` tokens of each row.
      length_b: int [B]; the root is `tokens[length - 1]`.
      sampling: values per row, [B]; q is the distribution after this transform.
      keys_b: the rows' own keys. What is drawn takes
        `draw.stream_keys(keys_b, length_b - 1, draw.Stream.DRAFT)`: the root's
        position only grows, so no two rounds of a row share a key; a draft
        that was thrown away must not lend its random bits to the next one.

    Returns:
      The draft and the state.
    """
    raise NotImplementedError

  def commit(
    self, state, draft: Draft, verdict: Verdict, root_b, scored: Scored
  ) -> Any:
    """State after the verdict.

    Args:
      state: the drafter's.
      draft: what was proposed.
      verdict: what was accepted.
      root_b: int [B], position of the root.
      scored: what the target's pass computed.
    """
    return state

  def catch_up(self, state, tokens_bs, length_b, behind, features_bwf) -> Any:
    """State after rounds in which nothing was drafted, and `commit` not called.

    In each of them every row that was not done grew by one token. They are
    committed as if tokens had been drafted and accepted, `CATCH_UP` at once,
    for which there is room.

    Args:
      state: before these rounds.
      tokens_bs: int [B, S], the text so far.
      length_b: int [B].
      behind: int [], these rounds, at least 1. A row may have come later: the
        same tokens before its root are read again.
      features_bwf: [B, W, F], the target's features at the roots of these
        rounds, that of position t at t mod W; `behind` is at most W.
    """
    tree = TokenTree.chain(CATCH_UP - 1)
    at_n = np.arange(tree.size, dtype=np.int32)[None]
    batch = len(length_b)
    first_b = length_b - 1 - behind  # before the text in one that is short

    def read(carry):
      done, state = carry
      end_b = first_b + jnp.minimum(behind, done + tree.size)
      start_b = jnp.maximum(first_b + done, 0)
      count_b = jnp.clip(end_b - start_b, 1, tree.size)
      at_bn = start_b[:, None] + at_n
      token = lambda at: jnp.take_along_axis(tokens_bs, at, axis=1, mode='clip')
      last_b = count_b - 1
      draft = Draft(
        tokens=token(at_bn),
        q=None,
        tree=tree,
        law='deterministic',
        valid=jnp.ones(at_bn.shape, bool),
      )
      verdict = Verdict(
        node=last_b,
        num_accepted=last_b,
        path=jnp.broadcast_to(at_n, at_bn.shape),
        next_token=token(at_bn[:, :1] + count_b[:, None])[:, 0],
      )
      features_bnf = jnp.take_along_axis(
        features_bwf, (at_bn % features_bwf.shape[1])[:, :, None], axis=1
      )
      scored = Scored(
        features_bnf,
        extra_logits=jnp.zeros((batch, 0, 0), jnp.float32),
        active=jnp.ones((batch,), bool),
      )
      state = self.commit(state, draft, verdict, at_bn[:, 0], scored)
      return done + tree.size, state

    return jax.lax.while_loop(
      lambda carry: carry[0] < behind, read, (jnp.int32(0), state)
    )[1]


def check_fits(params: Any, tree: TokenTree, target: LanguageModel) -> None:
  """Refuses parameters on another mesh, and more candidates than tokens."""
  if meshes.of(params) != target.mesh:
    raise UserError(
      f'drafter and target must lie on one mesh; got {meshes.of(params)} and '
      f'{target.mesh}'
    )
  if tree.width > target.config.vocab_size:
    raise UserError(
      f'branching: got {tree.width} candidates, more than the '
      f'{target.config.vocab_size} tokens of the vocabulary'
    )


def root_of(tokens_bs: jax.Array, length_b: jax.Array) -> jax.Array:
  """Returns the last committed token of each row, int [B, 1].

  Its second axis is the root's node, as `candidates.draft_of` takes it.

  Args:
    tokens_bs: int [B, S], the text so far.
    length_b: int [B], its tokens.
  """
  return jnp.take_along_axis(tokens_bs, length_b[:, None] - 1, axis=1)


def emitted_tokens(draft: Draft, verdict: Verdict) -> jax.Array:
  """Accepted tokens, then the verdict's: int [B, depth + 1], noise after."""
  node_bt = jnp.maximum(verdict.path, 0)
  path_bt = jnp.take_along_axis(draft.tokens, node_bt, axis=1)
  accepted_bt = jnp.roll(path_bt, -1, axis=1)  # the root is committed
  at = jnp.arange(path_bt.shape[1], dtype=jnp.int32)[None, :]
  return jnp.where(
    at == verdict.num_accepted[:, None],
    verdict.next_token[:, None],
    accepted_bt,
  )
