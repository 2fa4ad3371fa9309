"""Published drafters computed in torch, by their config.json and tensors."""

import numpy as np

from specsamp.checkpoints import layouts, weights
from specsamp.checkpoints.huggingface.families import llama


def _yarn(frequencies, theta, scaling):
  """Returns YaRN's frequencies, and the factor of cosines and sines."""
  names = 'factor', 'original_max_position_embeddings'
  factor, original = (scaling[name] for name in names)
  size = 2 * len(frequencies)
  at = lambda turns: (
    size * np.log(original / (2 * np.pi * turns)) / (2 * np.log(theta))
  )
  low = max(np.floor(at(scaling['beta_fast'])), 0)
  high = min(np.ceil(at(scaling['beta_slow'])), size - 1)
  ramp = np.clip((np.arange(size // 2) - low) / (high - low), 0, 1)
  assert len({*ramp}) > 2
  ramp = frequencies.new_tensor(ramp)
  return frequencies * (ramp / factor + 1 - ramp), 0.1 * np.log(factor) + 1


class Torch:
  """Drafters of one sequence at a time, in float64 and without a cache."""

  def __init__(self, target, tensors, values):
    import torch

    self.torch = torch
    self.values = values
    # Fields of a layer, which Medusa lacks.
    layers = values.get('transformer_layer_config', values)
    layers = layers.get('rope_parameters', {}) | layers
    self.layers = [
      layers.get(name)
      for name in ('num_attention_heads', 'num_key_value_heads', 'rope_theta')
    ]
    if layers.get('rope_scaling'):
      self.layers[2] = self.layers[2], layers['rope_scaling']
    self.epsilon = layers.get('rms_norm_eps')
    array = lambda value: self.torch.tensor(np.asarray(value)).double()
    self.config = target.config
    flat = weights.flat(target.params)
    sizes = weights.sizes(flat)
    layout = llama.layout(target.config)
    fetch = lambda name: np.asarray(flat[name])
    self.target = {
      key: array(layouts.build_tensor(layout, key, shape, fetch, np.float32))
      for key, shape in layouts.tensor_shapes(layout, sizes).items()
    }
    self.own = {name: array(value) for name, value in tensors.items()}
    self.embedding = self.target['model.embed_tokens.weight']
    self.lm_head = self.target['lm_head.weight']

  def rms(self, x, scale, epsilon=None):
    epsilon = epsilon or self.epsilon
    return scale * x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()

  def rotate(self, x_thd, theta, start=0):
    length, _, width = x_thd.shape
    theta, yarn = theta if isinstance(theta, tuple) else (theta, None)
    frequencies = theta ** (-self.torch.arange(0, width, 2).double() / width)
    factor = 1.0
    if yarn:
      frequencies, factor = _yarn(frequencies, theta, yarn)
    at = start + self.torch.arange(length).double()
    angles = at[:, None, None] * frequencies
    a, b = x_thd.chunk(2, dim=-1)
    cos, sin = factor * angles.cos(), factor * angles.sin()
    return self.torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

  def attention(
    self, weights, name, x, heads, kv_heads, theta, context=None, seen=None
  ):
    """Causal attention, or a block's to what it sees of context and itself."""
    reads = x if context is None else self.torch.cat([context, x])
    length, before = len(x), len(reads) - len(x)
    project = lambda which, x, n: (
      (
        x @ weights[f'{name}{which}_proj.weight'].T
        + weights.get(f'{name}{which}_proj.bias', 0)  # Qwen2
      ).reshape(len(x), n, -1)
    )
    q, k = project('q', x, heads), project('k', reads, kv_heads)
    v = project('v', reads, kv_heads)
    if f'{name}q_norm.weight' in weights:  # Qwen3
      q = self.rms(q, weights[f'{name}q_norm.weight'])
      k = self.rms(k, weights[f'{name}k_norm.weight'])
    q, k = self.rotate(q, theta, before), self.rotate(k, theta)
    k, v = (a.repeat_interleave(heads // kv_heads, dim=1) for a in (k, v))
    scores = self.torch.einsum('thd,shd->hts', q, k) * q.shape[-1] ** -0.5
    if context is None:
      seen = self.torch.ones(length, length).tril().bool()
    scores = scores.masked_fill(~seen, -self.torch.inf)
    mixed = self.torch.einsum('hts,shd->thd', scores.softmax(-1), v)
    return mixed.reshape(length, -1) @ weights[f'{name}o_proj.weight'].T

  def mlp(self, weights, name, x):
    gate, up, down = (
      weights[f'{name}{which}_proj.weight'].T
      for which in ('gate', 'up', 'down')
    )
    return (self.silu(x @ gate) * (x @ up)) @ down

  def silu(self, x):
    return x * x.sigmoid()

  def layer(self, w, name, x, reads, shape, epsilon, *block):
    x = x + self.attention(w, name + 'self_attn.', reads, *shape, *block)
    normed = self.rms(x, w[name + 'post_attention_layernorm.weight'], epsilon)
    return x + self.mlp(w, name + 'mlp.', normed)

  def streams(self, tokens):
    """Returns the target's stream before each layer, after all, and normed."""
    c, w = self.config, self.target
    shape, e = (c.num_heads, c.num_kv_heads, c.rope_theta), c.norm_epsilon
    streams = [self.embedding[tokens]]
    for i in range(c.num_layers):
      name, x = f'model.layers.{i}.', streams[-1]
      normed = self.rms(x, w[f'{name}input_layernorm.weight'], e)
      streams.append(self.layer(w, name, x, normed, shape, e))
    return [*streams, self.rms(streams[-1], w['model.norm.weight'], e)]

  def medusa(self, text, path):
    """Returns logits of head i = len(path) at the token before the last."""
    i, w = len(path), self.own
    x = self.streams(text[:-1])[-1][-1]
    for block in range(2):
      name = f'{i}.{block}.linear.'
      x = x + self.silu(w[name + 'weight'] @ x + w[name + 'bias'])
    return w[f'{i}.2.weight'] @ x

  def eagle(self, text, path):
    """Returns logits after pairs of a token and the feature before it."""
    return self.steps(
      text,
      path,
      self.embedding,
      self.streams(text[:-1])[-1],
      self.eagle_layer,
      self.lm_head.mv,
    )

  def eagle3(self, text, path):
    return self.steps(
      text,
      path,
      self.own.get('embed_tokens.weight', self.embedding),
      self.fused(self.tapped(self.streams(text[:-1]))),
      self.eagle3_layers,
      self.eagle3_logits,
    )

  def mimo(self, text, path):
    """Returns logits of a module that reads [hidden; token] before the norm."""
    prefix = 'model.mtp_layers.0.'
    names = 'hidden_layernorm', 'token_layernorm', 'input_proj'
    return self.mtp(text, path, -2, prefix, *names, 'final_layernorm', False)

  def deepseek(self, text, path):
    """Returns logits of a module that reads [token; hidden] after the norm."""
    prefix = f'model.layers.{self.config.num_layers}.'
    names = 'hnorm', 'enorm', 'eh_proj', 'shared_head.norm'
    return self.mtp(text, path, -1, prefix, *names, True)

  def mtp(self, text, path, stream, prefix, hidden, token, fuse, norm, swapped):
    w = {name: self.own[f'{prefix}{name}.weight'] for name in (
      hidden, token, fuse, norm, 'input_layernorm',
    )}  # fmt: skip

    def module(embedded, features):
      read = [self.rms(features, w[hidden]), self.rms(embedded, w[token])]
      read = read[::-1] if swapped else read
      x = self.torch.cat(read, dim=-1) @ w[fuse].T
      normed = self.rms(x, w['input_layernorm'])
      return self.rms(self.rest_of_layer(prefix, x, normed), w[norm])

    return self.steps(
      text,
      path,
      self.embedding,
      self.streams(text[:-1])[stream],
      module,
      self.lm_head.mv,
    )

  def peagle(self, text, path):
    """Returns logits at masks after the text, which do not see the path."""
    w, values = self.own, self.values
    key = 'mask_token_id' if 'mask_token_id' in values else 'ptd_token_id'
    embedding = w.get('embed_tokens.weight', self.embedding)
    tapped = self.tapped(self.streams(text[:-1]))
    masks = w['mask_hidden'].reshape(1, -1).repeat(len(path), 1)
    features = self.fused(self.torch.cat([tapped, masks]))
    tokens = [*text[1:], *[values[key]] * len(path)]
    out = self.eagle3_layers(embedding[tokens], features)
    return self.eagle3_logits(out[-1])

  def tapped(self, streams):
    """Returns EAGLE-3's features, by the rules of its kind of config."""
    config = self.values.get('eagle_config', {})
    if config.get('use_aux_hidden_state') is False:
      return streams[-1]
    key, num_layers = 'eagle_aux_hidden_state_layer_ids', len(streams) - 2
    ids = config.get(key) or self.values.get(key)
    if not ids:
      ids = [2, num_layers // 2, num_layers - 3]
    elif ids[0] == 1 and 'speculators_model_type' not in self.values:
      ids = [i + 1 for i in ids]  # outputs of the layers
    return self.torch.cat([streams[i] for i in ids], dim=-1)

  def fused(self, tapped):
    w, values = self.own, self.values
    if values.get('norm_before_fc'):
      tapped = self.rms(tapped, w['input_norm.weight'])
    if values.get('fc_norm'):
      taps = range(sum(name.startswith('fc_norm.') for name in w))
      scales = [w[f'fc_norm.{i}.weight'] for i in taps]
      parts = zip(tapped.chunk(len(taps), dim=-1), scales, strict=True)
      tapped = self.torch.cat([self.rms(*part) for part in parts], dim=-1)
    return tapped @ w['fc.weight'].T if 'fc.weight' in w else tapped

  def eagle3_logits(self, x):
    w = self.own
    if not self.values.get('norm_output'):
      x = self.rms(x, w['norm.weight'])
    return self.spread(w.get('lm_head.weight', self.lm_head) @ x)

  def spread(self, logits):
    """Returns the logits of all tokens, from those of the head's tokens."""
    w = self.own
    if 'd2t' not in w:
      return logits
    shape = (self.config.vocab_size,)
    all_logits = self.torch.full(shape, -self.torch.inf).double()
    rows = self.torch.arange(len(w['d2t']))
    all_logits[rows + w['d2t'].long()] = logits
    return all_logits

  def dflash(self, text, path):
    """Returns logits at a place of a block, which does not see the path."""
    return self.spread(self.dflash_logits(text, path))

  def dspark(self, text, path):
    """Returns DFlash's logits with the bias after the last token."""
    w = self.own
    first = w['markov_head.markov_w1.weight'][[*text, *path][-1]]
    bias = w['markov_head.markov_w2.weight'] @ first
    return self.spread(self.dflash_logits(text, path) + bias)

  def dflash_logits(self, text, path):
    w, values = self.own, self.values
    config = values | values.get('dflash_config', {})
    if 'target_layer_ids' in config:
      taps = [i + 1 for i in config['target_layer_ids']]
    else:
      taps = config['aux_hidden_state_layer_ids']
    streams = self.streams(text[:-1])
    tapped = self.torch.cat([streams[i] for i in taps], dim=-1)
    context = self.rms(tapped @ w['fc.weight'].T, w['hidden_norm.weight'])
    size = config['block_size']
    x = self.embedding[[text[-1], *[config['mask_token_id']] * (size - 1)]]
    for i in range(8):
      if f'layers.{i}.input_layernorm.weight' in w:
        normed = self.rms(x, w[f'layers.{i}.input_layernorm.weight'])
        seen = self.seen(i, len(context), size)
        x = self.rest_of_layer(f'layers.{i}.', x, normed, context, seen)
    # The authors' DSpark, but not their DFlash, drafts at the root.
    at_root = config.get('sample_from_anchor', 'markov_rank' in config)
    x = self.rms(x[len(path) + (not at_root)], w['norm.weight'])
    is_part = config.get('draft_vocab_size', len(self.lm_head)) < len(
      self.lm_head
    )
    return (w['lm_head.weight'] if is_part else self.lm_head) @ x

  def seen(self, layer, root, size):
    """Returns what a block sees of the text and itself, in a layer."""
    values, at = self.values, self.torch.arange(size)[:, None]
    layers = values.get('transformer_layer_config', values)
    slots = self.torch.arange(root + size)[None]
    if layers.get('layer_types', ['full_attention'] * 8)[layer][0] == 'f':
      return (slots + at) >= 0
    window = layers['sliding_window']
    first = root + at - (window - 1)
    if 'speculators_model_type' in values:
      first = root - window
    is_causal = not values.get('sliding_window_non_causal')
    return (slots >= first) & (
      slots <= (root + at if is_causal else root + size)
    )

  def steps(self, text, path, embedding, features, layer, logits):
    """Returns logits after the text, then the path with fed-back outputs."""
    tokens, path = list(text[1:]), list(path)
    while True:
      out = layer(embedding[tokens], features)[-1]
      if not path:
        return logits(out)
      tokens.append(path.pop(0))
      features = self.torch.cat([features, out[None]])

  def eagle_layer(self, embedded, features):
    w = self.own
    x = self.torch.cat([embedded, features], dim=-1) @ w['fc.weight'].T
    x = x + w.get('fc.bias', 0)
    return self.rest_of_layer('layers.0.', x, x)

  def eagle3_layers(self, embedded, features):
    w = self.own
    authors = any(name.startswith('midlayer.') for name in w)
    first = 'midlayer.' if authors else 'layers.0.'
    both = [
      self.rms(embedded, w[first + 'input_layernorm.weight']),
      self.rms(features, w[first + 'hidden_norm.weight']),
    ]
    before = self.values.get('norm_before_residual')
    x = self.rest_of_layer(
      first, both[1] if before else features, self.torch.cat(both, dim=-1)
    )
    for i in range(1, 9):
      name = f'layers.{i}.'
      if name + 'input_layernorm.weight' in w:
        normed = self.rms(x, w[name + 'input_layernorm.weight'])
        x = self.rest_of_layer(name, x, normed)
    return (
      self.rms(x, w['norm.weight']) if self.values.get('norm_output') else x
    )

  def rest_of_layer(self, name, x, reads, *block):
    return self.layer(
      self.own, name, x, reads, self.layers, self.epsilon, *block
    )
