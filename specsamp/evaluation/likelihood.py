"""Likelihood of a completion under the target's distribution."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.decoding.arguments import num_rows
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams, probabilities
from specsamp.sharding import mesh as meshes
from specsamp.sharding.rules import DATA

_CHUNK = 32  # positions whose distributions are in memory at once


class TextLikelihood(NamedTuple):
  """Likelihood of the output tokens of a prompt.

  The distribution p is the target's after temperature and truncation.

  Attributes:
    excess_nll: Σ -log p(x) - H over the tokens x of nonzero probability, in
      nats, where H is the entropy of p. Draws from p have a mean of 0.
    variance: variance of `excess_nll` for draws from p, in squared nats.
    outside: number of tokens of probability 0; for greedy sampling all tokens
      except the best.
    gap: largest difference between the largest logit and that of a token of
      probability 0.
  """

  excess_nll: float
  variance: float
  outside: int
  gap: float


def text_likelihood(
  target: LanguageModel,
  prompt: Sequence[int],
  output: Sequence[int],
  sampling: SamplingParams,
) -> TextLikelihood:
  """Scores the tokens of an output after a prompt that is not empty.

  A score is one pass.
  """
  bounds = np.int32(len(prompt)), np.int32(len(prompt) + len(output))
  law = sampling.broadcast(_CHUNK)
  sums = pass_over(target, _sums, [*prompt, *output], *bounds, law)
  excess, variance, outside, gap = map(float, sums)
  return TextLikelihood(excess, variance, int(outside), gap)


def pass_over(
  target: LanguageModel, function: Callable, tokens: Sequence[int], *arguments
):
  """Computes a function of the target's hidden features after each token.

  `function` maps (hidden_td, logits_of, tokens_t, arguments) to arrays, and
  `logits_of` maps hidden features [T, D] to logits [T, V]. It is compiled for
  four values of T in each octave; later positions are padding. Returns the
  arrays on the host.
  """
  # The steps of batch sizes suit lengths as well.
  size = num_rows(max(len(tokens), _CHUNK), mesh=None)
  size = min(size, target.config.max_length)
  padded = np.zeros(size, np.int32)
  padded[: len(tokens)] = tokens
  with meshes.use(target.mesh):
    out = _compiled(function)(
      target.transformer,
      target.params,
      # Rows fill the shards of a batch.
      target.mesh.shape[DATA] if target.mesh else 1,
      padded,
      *arguments,
    )
  return meshes.fetch(out)


@functools.cache
def _compiled(function: Callable):
  def compute(transformer, params, rows, tokens_t, *arguments):
    def apply(x, **options):
      rows_x = jnp.broadcast_to(x, (rows, *x.shape))
      return transformer.apply({'params': params}, rows_x, **options)

    logits_of = lambda hidden_td: apply(hidden_td, method='logits')[0]
    return function(apply(tokens_t).hidden[0], logits_of, tokens_t, *arguments)

  return jax.jit(compute, static_argnums=(0, 2))


def _sums(hidden_td, logits_of, tokens_t, start, end, sampling):
  size = tokens_t.shape[0]
  pad = -size % _CHUNK
  at_t = jnp.arange(size, dtype=jnp.int32)
  counts_t = (at_t + 1 >= start) & (at_t + 1 < end)
  chunks = lambda x: jnp.pad(x, [(0, pad)] + [(0, 0)] * (x.ndim - 1)).reshape(
    -1, _CHUNK, *x.shape[1:]
  )

  def of_chunk(args):
    hidden_td, next_t, counts_t = args
    logits_tv = logits_of(hidden_td)
    p_tv = probabilities(logits_tv, sampling)
    pick = lambda x: jnp.take_along_axis(x, next_t[:, None], axis=1)[:, 0]
    is_in_t = pick(p_tv) > 0
    log_p_tv = jnp.log(jnp.where(p_tv > 0, p_tv, 1.0))
    entropy_t = -(p_tv * log_p_tv).sum(axis=-1)
    variance_t = (p_tv * log_p_tv**2).sum(axis=-1) - entropy_t**2
    excess_t = -pick(log_p_tv) - entropy_t
    inside_t = counts_t & is_in_t
    outside_t = counts_t & ~is_in_t
    gap_t = jnp.max(logits_tv, axis=-1) - pick(logits_tv)
    return (
      jnp.where(inside_t, excess_t, 0.0).sum(),
      jnp.where(inside_t, jnp.maximum(variance_t, 0.0), 0.0).sum(),
      outside_t.sum(),
      jnp.where(outside_t, gap_t, 0.0).max(),
    )

  excess, variance, outside, gap = jax.lax.map(
    of_chunk,
    (chunks(hidden_td), chunks(jnp.roll(tokens_t, -1)), chunks(counts_t)),
  )
  return excess.sum(), variance.sum(), outside.sum(), gap.max()
