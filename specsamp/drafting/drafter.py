"""Interface between the decoding loop and a drafter."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from specsamp.drafting.draft import Draft, ExtraTree, Law, TokenTree, Verdict
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes

CATCH_UP = 8  # tokens in one pass of a `SkippingDrafter` over skipped text


class Scored(NamedTuple):
  """Target outputs passed to `Drafter.commit`.

  Attributes:
    features: the target's features at every node: [B, N, D], or
      [B, N, taps * D].
    extra_logits: float32 [B, K, V], after the K extra tokens that are read.
    active: bool [B], rows that were not done before this round; the outputs of
      other rows are noise.
  """

  features: jax.Array
  extra_logits: jax.Array
  active: jax.Array


@struct.dataclass
class SharedState:
  """Base of drafter state that all rows of a batch share.

  An engine keeps it when it refills a slot.
  """


class Drafter:
  """Base of drafters, which propose a tree of draft tokens in every round.

  A drafter derives from this class and is a pytree (`flax.struct.dataclass`):
  its parameters are leaves, traced; everything that shapes the program is
  static. Its state is a pytree that the loop carries and donates. By default it
  has no state and reads no features of the target.

  If an `Engine` may update its parameters, a drafter also has a method
  `with_params(params, target)`. See the function `with_params`.

  Attributes:
    tree: shape of every draft, static.
    law: how draft tokens are chosen, static.
    extra_tree: tokens that pass through the target alongside the draft, static.
    passes: sizes of the target's pass, ascending, the last one the whole tree;
      static. A round takes the smallest size that holds all nodes which were
      drafted in any row. `commit` receives a draft of that size.
    taps: layers of the target whose inputs, concatenated, are the features; ()
      means the output of the final norm. Static.
    mixes_rows: True if a row's draft depends on tokens drawn by other rows, or
      by earlier requests in the same batch. A row's draft would then depend on
      random bits that a row of equal seed uses later, so the loop gives each
      row other bits. Static.
  """

  tree: TokenTree
  law: Law
  extra_tree = ExtraTree()
  taps: ClassVar[tuple[int, ...]] = ()
  mixes_rows: ClassVar[bool] = False

  @property
  def passes(self) -> tuple[int, ...]:
    return (self.tree.size,)

  def check(self, target: LanguageModel, batch: int) -> None:
    """Raises `UserError` if the target or the batch size is not supported."""

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity: int) -> Any:
    """Returns the state before `prefill` reads the prompts.

    Args:
      tokens_bp: int [B, P], prompts, padded on the right.
      length_b: int [B], their lengths.
      no_feature_b1f: zeros, of the shape and type of one token's features.
      capacity: number of slots for the text and `cache_slots` more.
    """
    return ()

  def prefill(self, state, tokens_bc, features_bcf, start_b, length_b) -> Any:
    """Returns the state after a chunk of the prompts.

    Chunks come in order, and the last one has the last token of every row. It
    may begin before the end of the chunk before it, and a row that is shorter
    than others gets it several times: a token that is read again must change
    nothing.

    Args:
      state: the drafter's state.
      tokens_bc: int [B, C], tokens of each row from position `start` on; noise
        past its length.
      features_bcf: [B, 1 + C, features], the target's features of the token
        before the chunk, or zeros, and of its tokens.
      start_b: int [B], positions of the first tokens.
      length_b: int [B], lengths of the prompts.
    """
    return state

  @property
  def overlap(self) -> int | None:
    """Number of held tokens that a resumed prompt reads again.

    None if the drafter has an `init` without a `resume` that fits it. An engine
    then prefills each prompt as a whole.
    """
    classes = type(self).__mro__
    owner = lambda name: next(c for c in classes if name in vars(c))
    # The last token of a text has no cache entry, and that before it may have
    # none of the drafter.
    return 2 if issubclass(owner('resume'), owner('init')) else None

  def resume(self, state, tokens_bs, start_b, length_b) -> Any:
    """Returns the state before `prefill` reads the rest of the prompts.

    After `prefill` the state must be that of prompts that are read as a whole,
    and so independent of how the earlier text continued. This function suits a
    state of caches alone: `resume = Drafter.resume`.

    Args:
      state: state after an earlier text, which has the first `start + overlap`
        tokens of the prompt and at least one more token.
      tokens_bs: int [B, S], prompts, noise past their lengths.
      start_b: int [B], at most `length - 1 - overlap`. The rest begins at
        `start + 1` or earlier.
      length_b: int [B], lengths of the prompts.
    """
    return state

  def propose(
    self, state, tokens_bs, length_b, sampling: SamplingParams, keys_b
  ) -> tuple[Draft, Any]:
    """Drafts tokens after the root, the last committed token.

    Args:
      state: the drafter's state.
      tokens_bs: int [B, S], committed tokens, `length_b` in each row.
      length_b: int [B]; the root is `tokens[length - 1]`.
      sampling: values per row, [B]; q is the distribution after this transform.
      keys_b: keys of the rows. Draw with
        `draw.stream_keys(keys_b, length_b - 1, draw.Stream.DRAFT)`: the root's
        position only grows, so no two rounds of a row share a key. A rejected
        draft must not share random bits with the next one.

    Returns:
      The draft and the new state.
    """
    raise NotImplementedError

  def commit(
    self, state, draft: Draft, verdict: Verdict, root_b, scored: Scored
  ) -> Any:
    """Returns the state after a verdict.

    Args:
      state: the drafter's state.
      draft: the draft that was verified.
      verdict: the accepted part of the draft and the next token.
      root_b: int [B], position of the root.
      scored: outputs of the target's pass.
    """
    return state


@struct.dataclass
class NoDrafter(Drafter):
  """Drafter of nothing: autoregressive sampling in the same loop."""

  tree: TokenTree = struct.field(pytree_node=False, default=TokenTree.chain(0))
  law: Law = struct.field(pytree_node=False, default='iid')

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    root_b1 = root_of(tokens_bs, length_b)
    is_valid_b1 = jnp.ones(root_b1.shape, bool)
    return Draft(root_b1, None, self.tree, self.law, is_valid_b1), state


class SkippingDrafter(Drafter):
  """Base of drafters whose model does not run in every round.

  The model reads the text that it skipped before it drafts again, `CATCH_UP`
  tokens in a pass.
  """


def after_prompts(
  drafter: Drafter, tokens_bp, length_b, features_bpf, capacity: int
) -> Any:
  """Returns the state after prompts that are read in one chunk."""
  no_feature_b1f = jnp.zeros_like(features_bpf[:, :1])
  state = drafter.init(tokens_bp, length_b, no_feature_b1f, capacity)
  features_bpf = jnp.concatenate([no_feature_b1f, features_bpf], axis=1)
  start_b = jnp.zeros_like(length_b)
  return drafter.prefill(state, tokens_bp, features_bpf, start_b, length_b)


def cache_slots(drafter: Drafter) -> int:
  """Returns the number of cache slots that a round may use past the text."""
  size = drafter.tree.with_extra(drafter.extra_tree).size
  return max(size, CATCH_UP) if isinstance(drafter, SkippingDrafter) else size


def rounds_differ(drafter: Drafter) -> bool:
  """Returns True if the cost of a round depends on the text."""
  return len(drafter.passes) > 1 or isinstance(drafter, SkippingDrafter)


def with_params(
  drafter: Drafter, params: Any = None, target: Any = None
) -> Drafter:
  """Returns a drafter with new parameters, and with those of a new target.

  None keeps the present ones. Some drafters share parameters of the target.

  Raises:
    UserError: the drafter takes no parameters.
  """
  if hasattr(drafter, 'with_params'):
    return drafter.with_params(params, target)
  if params is not None:
    raise UserError(f'drafter: {type(drafter).__name__} takes no parameters')
  return drafter


def check_fits(params: Any, tree: TokenTree, target: LanguageModel) -> None:
  """Raises `UserError` if meshes differ or candidates exceed the vocabulary."""
  if meshes.of(params) != target.mesh:
    raise UserError(
      f'drafter and target must be on the same mesh; got {meshes.of(params)} '
      f'and {target.mesh}'
    )
  if tree.width > target.config.vocab_size:
    raise UserError(
      f'branching: got {tree.width} candidates, more than the '
      f'{target.config.vocab_size} tokens of the vocabulary'
    )


def spans(start_b: jax.Array, length: int) -> jax.Array:
  """Returns consecutive positions from `start`, int [B, length]."""
  return start_b[:, None] + jnp.arange(length, dtype=jnp.int32)[None, :]


def tokens_from(tokens_bs, start_b, length: int) -> jax.Array:
  """Returns the tokens of each row from `start`, int [B, length]."""
  at_bt = spans(start_b, length)
  return jnp.take_along_axis(tokens_bs, at_bt, axis=1, mode='clip')


def root_of(tokens_bs: jax.Array, length_b: jax.Array) -> jax.Array:
  """Returns the last committed token of each row, int [B, 1].

  `candidates.draft_of` takes it in this shape.

  Args:
    tokens_bs: int [B, S], committed tokens.
    length_b: int [B], number of committed tokens.
  """
  return jnp.take_along_axis(tokens_bs, length_b[:, None] - 1, axis=1)


def emitted_tokens(draft: Draft, verdict: Verdict) -> jax.Array:
  """Returns the accepted tokens, then the next token: int [B, depth + 1].

  The entries after the next token are noise.
  """
  node_bt = jnp.maximum(verdict.path, 0)
  path_bt = jnp.take_along_axis(draft.tokens, node_bt, axis=1)
  accepted_bt = jnp.roll(path_bt, -1, axis=1)  # the root is committed already
  at = jnp.arange(path_bt.shape[1], dtype=jnp.int32)[None, :]
  return jnp.where(
    at == verdict.num_accepted[:, None],
    verdict.next_token[:, None],
    accepted_bt,
  )
