"""Log-probabilities of tokens, from passes of the target that run anyway.

The logits at a node of a draft score the token after it, so those of the
emitted tokens are at the nodes of the accepted path. They are log-probabilities
under the target: an emitted token is a draw from the target's distribution, not
from acceptance or residual probabilities.
"""

import dataclasses

import jax
import jax.numpy as jnp

from specsamp.decoding.state import Logprobs
from specsamp.drafting.draft import Draft, Verdict
from specsamp.drafting.drafter import emitted_tokens
from specsamp.sampling import draw
from specsamp.sharding import lookup


@dataclasses.dataclass(frozen=True)
class LogprobOptions:
  """Log-probabilities that a state records; static.

  Attributes:
    top: K, number of most probable tokens at each position.
    prompts: True to record those of the prompts too, which applies the LM head
      to every prompt token.
  """

  top: int
  prompts: bool = False


def empty(
  options: LogprobOptions | None, batch: int, capacity: int
) -> Logprobs | None:
  """Returns log-probabilities before any token; None if not recorded."""
  if options is None:
    return None
  shape = (batch, capacity)
  return Logprobs(
    raw=jnp.zeros(shape, jnp.float32),
    processed=jnp.zeros(shape, jnp.float32),
    top_tokens=jnp.zeros((*shape, options.top), jnp.int32),
    top_raw=jnp.zeros((*shape, options.top), jnp.float32),
  )


def of_prompts(logprobs: Logprobs | None) -> Logprobs | None:
  """Returns the log-probabilities of texts that are now prompts."""
  if logprobs is None:
    return None
  return logprobs.replace(processed=jnp.zeros_like(logprobs.processed))


def after_chunk(logprobs: Logprobs, logits_bcv, next_bc, start_b) -> Logprobs:
  """Returns the log-probabilities after adding those of a prompt's tokens.

  `next_bc` are the tokens after those of the chunk, which begins at `start`.
  """
  raw_bcv = _log_softmax(logits_bcv)
  raw_bc = _at_tokens(raw_bcv, next_bc)
  top_raw, top_tokens = draw.largest(raw_bcv, logprobs.top_raw.shape[-1])
  new = Logprobs(raw_bc, jnp.zeros_like(raw_bc), top_tokens, top_raw)
  return _write(logprobs, new, start_b + 1)


def after_round(
  logprobs: Logprobs | None,
  logits_bnv,
  p_bnv,
  draft: Draft,
  verdict: Verdict,
  root_b,
) -> Logprobs | None:
  """Returns the log-probabilities after adding a round's emitted tokens.

  `logits_bnv` and the distribution `p_bnv` are the target's after each node,
  `root_b` is the position of the root. None stays None.
  """
  if logprobs is None:
    return None
  emitted_bt = emitted_tokens(draft, verdict)
  node_bt = jnp.maximum(verdict.path, 0)

  def on_path(array_bnv):
    if draft.tree.is_chain:  # its nodes are the path, then noise
      return array_bnv
    return jnp.take_along_axis(array_bnv, node_bt[:, :, None], axis=1)

  raw_btv = _log_softmax(on_path(logits_bnv))
  p_bt = _at_tokens(on_path(p_bnv), emitted_bt)
  top_raw, top_tokens = draw.largest(raw_btv, logprobs.top_raw.shape[-1])
  new = Logprobs(
    raw=_at_tokens(raw_btv, emitted_bt),
    processed=jnp.log(p_bt).astype(jnp.float32),
    top_tokens=top_tokens,
    top_raw=top_raw,
  )
  return _write(logprobs, new, root_b + 1)


def _log_softmax(logits):
  # Not -inf, from which a sum over shards would make NaN.
  lowest = jnp.finfo(jnp.float32).min
  return jnp.maximum(
    jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1), lowest
  )


def _at_tokens(values_btv, tokens_bt):
  """Returns the value of each token: [B, T]."""
  return lookup.along(values_btv, tokens_bt[:, :, None], axis=2)[:, :, 0]


def _write(logprobs: Logprobs, new: Logprobs, start_b) -> Logprobs:
  """Writes T new entries from a position of each row."""
  write_row = jax.vmap(
    lambda row, new, start: jax.lax.dynamic_update_slice(
      row, new, (start,) + (0,) * (row.ndim - 1)
    )
  )
  return jax.tree.map(lambda a, b: write_row(a, b, start_b), logprobs, new)
