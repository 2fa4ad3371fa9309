"""Log-probabilities of tokens, from the passes of the target that there are.

Node i of a draft scores the token after it, so that those of the emitted tokens
stand at the nodes of the verdict's path. They are the target's, never those of
acceptance or of a residual distribution: of these no emitted token is a draw.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specsamp.decoding.state import Logprobs
from specsamp.drafting.draft import Draft, Verdict
from specsamp.drafting.drafter import emitted_tokens
from specsamp.sampling import draw
from specsamp.sharding import lookup


class Asked(NamedTuple):
  """Which log-probabilities a state shall have; static.

  Attributes:
    top: K, of how many of the most probable tokens, beside the one that is
      there; None is no log-probabilities at all.
    of_prompts: of the prompts' tokens too, which takes the LM head over all of
      them at once.
  """

  top: int | None = None
  of_prompts: bool = False


NOTHING = Asked()


def begin(
  asked: Asked, logits_bpv, tokens_bp, capacity: int
) -> Logprobs | None:
  """Those after a prompt.

  Args:
    asked: which.
    logits_bpv: float [B, P, V], the target's at the prompts.
    tokens_bp: int [B, P], the prompts.
    capacity: S.
  """
  if asked.top is None:
    return None
  shape = (len(tokens_bp), capacity)
  kept = Logprobs(
    raw=jnp.zeros(shape, jnp.float32),
    processed=jnp.zeros(shape, jnp.float32),
    top_tokens=jnp.zeros((*shape, asked.top), jnp.int32),
    top_raw=jnp.zeros((*shape, asked.top), jnp.float32),
  )
  if not asked.of_prompts or tokens_bp.shape[1] == 1:
    return kept
  raw_btv = _log_softmax(logits_bpv[:, :-1])
  raw_bt = _of(raw_btv, tokens_bp[:, 1:])
  top_raw, top_tokens = draw.largest(raw_btv, asked.top)
  new = Logprobs(raw_bt, jnp.zeros_like(raw_bt), top_tokens, top_raw)
  at_b = jnp.ones((len(tokens_bp),), jnp.int32)
  return _put(kept, new, at_b)


def write(
  kept: Logprobs | None,
  logits_bnv,
  p_bnv,
  draft: Draft,
  verdict: Verdict,
  root_b,
) -> Logprobs | None:
  """With those of the tokens that a round emits, past the root.

  Args:
    kept: before the round.
    logits_bnv: float [B, N, V], the target's after each node.
    p_bnv: float [B, N, V], after the transform.
    draft: of the round.
    verdict: of the round.
    root_b: int [B], position of the root.
  """
  if kept is None:
    return None
  emitted_bt = emitted_tokens(draft, verdict)
  if draft.tree.is_chain:  # whose nodes are the path, and noise
    on_path = lambda array_bnv: array_bnv
  else:
    node_bt = jnp.maximum(verdict.path, 0)
    on_path = lambda array_bnv: jnp.take_along_axis(
      array_bnv, node_bt[:, :, None], axis=1
    )
  raw_btv = _log_softmax(on_path(logits_bnv))
  top_raw, top_tokens = draw.largest(raw_btv, kept.top_raw.shape[-1])
  new = Logprobs(
    raw=_of(raw_btv, emitted_bt),
    processed=jnp.log(_of(on_path(p_bnv), emitted_bt)).astype(jnp.float32),
    top_tokens=top_tokens,
    top_raw=top_raw,
  )
  return _put(kept, new, root_b + 1)


def _log_softmax(logits):
  # Not -inf, of which a shard's sum would make NaN.
  lowest = jnp.finfo(jnp.float32).min
  return jnp.maximum(
    jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1), lowest
  )


def _of(values_btv, tokens_bt):
  """The value of each token: [B, T]."""
  return lookup.along(values_btv, tokens_bt[:, :, None], axis=2)[:, :, 0]


def _put(kept: Logprobs, new: Logprobs, start_b) -> Logprobs:
  """With T new ones from these places on."""
  write_row = jax.vmap(
    lambda row, new, start: jax.lax.dynamic_update_slice(
      row, new, (start,) + (0,) * (row.ndim - 1)
    )
  )
  return jax.tree.map(lambda a, b: write_row(a, b, start_b), kept, new)
