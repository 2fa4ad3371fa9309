"""The transformer against a NumPy reference: float64, one head at a time."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

_erf = np.vectorize(math.erf)

_ACTIVATIONS = {
  'silu': lambda x: x / (1 + np.exp(-x)),
  'relu': lambda x: np.maximum(x, 0),
  'gelu': lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
  'gelu_tanh': lambda x: (
    x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
  ),
}


def _norm(config, params, x):
  if config.norm == 'layer':
    x = x - x.mean(-1, keepdims=True)
  x = _rms(x, params['scale'], config.norm_epsilon)
  return x + params['bias'] if config.norm == 'layer' else x


def _frequency(config, exponent):
  frequency = config.rope_theta**-exponent
  scaling = config.rope_scaling
  if scaling is None:
    return frequency
  if scaling.kind == 'yarn':
    pairs = config.head_dim * config.rotary_fraction / 2
    first, last = (
      pairs
      * math.log(scaling.original_length / (2 * math.pi * fits))
      / math.log(config.rope_theta)
      for fits in (scaling.high_frequency, scaling.low_frequency)
    )
    ramp = min(max((exponent * pairs - first) / (last - first), 0), 1)
    return frequency * (ramp / scaling.factor + 1 - ramp)
  wavelength = 2 * math.pi / frequency
  longest = scaling.original_length / scaling.low_frequency
  shortest = scaling.original_length / scaling.high_frequency
  if scaling.kind == 'linear' or wavelength > longest:
    return frequency / scaling.factor
  if wavelength < shortest:
    return frequency
  between = scaling.original_length / wavelength - scaling.low_frequency
  between /= scaling.high_frequency - scaling.low_frequency
  return between * frequency + (1 - between) * frequency / scaling.factor


def _rms(x, scale, epsilon):
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def _rotate(config, x, position):
  """Rotates one head's vector as complex numbers."""
  half = int(len(x) * config.rotary_fraction) // 2
  turned = (x[:half] + 1j * x[half : 2 * half]) * np.exp(
    1j
    * position
    * np.array([_frequency(config, i / half) for i in range(half)])
  )
  if config.rope_scaling:
    turned *= config.rope_scaling.attention_factor
  return np.concatenate([turned.real, turned.imag, x[2 * half :]])


def _sinusoid(width, distance):
  half = (width + 1) // 2
  angles = distance * 10_000 ** (-np.arange(half) / half)
  return np.concatenate([np.sin(angles), np.cos(angles)])[:width]


def _cap(x, cap):
  return x if cap is None else cap * np.tanh(x / cap)


def _attention(config, params, x, window):
  if window and config.window_rope_theta:
    config = dataclasses.replace(
      config, rope_theta=config.window_rope_theta, rope_scaling=None
    )
  per_group = config.num_heads // config.num_kv_heads
  out = np.zeros_like(x)
  for head in range(config.num_heads):
    group = head // per_group
    q = x @ params['q'][head].T
    k = x @ params['kv'][0, group].T
    v = x @ params['kv'][1, group].T
    if config.biases != 'none':
      q = q + params['q_bias'][head]
      k = k + params['kv_bias'][0, group]
      v = v + params['kv_bias'][1, group]
    if config.qk_norm:
      q = _rms(q, params['q_norm'], config.norm_epsilon)
      k = _rms(k, params['k_norm'], config.norm_epsilon)
    for t in range(len(x)):
      scores = np.zeros(t + 1)
      for s in range(t + 1):
        if config.positions == 'relative':
          # Dai et al. 1901.02860, section 3.3, terms a to d.
          r = params['relative'][head] @ _sinusoid(config.width, t - s)
          scores[s] = (q[t] + params['content_bias'][head]) @ k[s]
          scores[s] += (q[t] + params['distance_bias'][head]) @ r
        elif config.positions == 'rotary':
          scores[s] = _rotate(config, q[t], t) @ _rotate(config, k[s], s)
        else:
          scores[s] = q[t] @ k[s]
      if config.query_growth:
        spans = t // config.rope_scaling.original_length
        scores *= 1 + config.query_growth * math.log(1 + spans)
      scores *= config.query_scale or 1 / math.sqrt(config.head_dim)
      scores = _cap(scores, config.score_cap)
      if window:
        scores[: max(t + 1 - window, 0)] = -np.inf
      weights = np.exp(scores - scores.max())
      weights /= weights.sum()
      out[t] += params['o'][:, head] @ (weights @ v[: t + 1])
  has_bias = config.biases in ('attention', 'all')
  return out + params['o_bias'] if has_bias else out


def _mlp(config, params, x):
  parts = [x @ part.T for part in params['up']]
  if config.biases == 'all':
    parts = [h + b for h, b in zip(parts, params['up_bias'], strict=True)]
  h = _ACTIVATIONS[config.activation](parts[0])
  if config.gated:
    h = h * parts[1]
  out = h @ params['down'].T
  return out + params['down_bias'] if config.biases == 'all' else out


def _experts(config, params, x):
  """Runs each token through its experts, one by one."""
  out = np.zeros_like(x)
  probs = np.exp(x @ params['router'].T)
  probs /= probs.sum(axis=-1, keepdims=True)
  for t, token in enumerate(x):
    for e in np.argsort(-probs[t])[: config.experts_per_token]:
      up = np.stack([params['expert_gate'][e], params['expert_up'][e]])
      mlp = {'up': up, 'down': params['expert_down'][e]}
      out[t] += probs[t, e] * _mlp(config, mlp, token)
  return out


def _reference(config, params, tokens):
  """Returns logits [T, V] and hidden states [T, D] of one row."""
  params = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
  x = params['embedding'][tokens] * config.embedding_scale
  if config.positions == 'learned':
    x = x + params['position_embedding'][: len(tokens)]
  for i in range(config.num_layers):
    block = params[f'layers_{i}']
    normed = _norm(config, block['attention_norm'], x)
    window = config.windows[i % len(config.windows)] if config.windows else 0
    attended = _attention(config, block['attention'], normed, window)
    if config.output_norms:
      attended = _norm(config, block['attention_output_norm'], attended)
    x = x + attended
    has_experts = config.num_experts and i not in config.dense_layers
    run = _experts if has_experts else _mlp
    out = run(config, block['mlp'], _norm(config, block['mlp_norm'], x))
    if config.output_norms:
      out = _norm(config, block['mlp_output_norm'], out)
    x = x + out
  hidden = _norm(config, params['final_norm'], x)
  head = params['embedding' if config.tied_embeddings else 'head']
  logits = _cap(hidden @ head.T, config.logit_cap)
  logits[:, config.num_tokens :] = -1e30
  return logits, hidden


def test_whole_pass(model):
  transformer, params = model
  config = transformer.config
  tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, 11))
  out = jax.jit(transformer.apply)({'params': params}, jnp.asarray(tokens))
  assert out.cache is None
  assert out.logits.dtype == jnp.float32
  for row in range(2):
    logits, hidden = _reference(config, params, tokens[row])
    scale = np.abs(logits[:, : config.num_tokens]).max()
    np.testing.assert_allclose(out.logits[row], logits, atol=1e-5 * scale)
    np.testing.assert_allclose(
      out.hidden[row], hidden, atol=1e-5 * np.abs(hidden).max()
    )
