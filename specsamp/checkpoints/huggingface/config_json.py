"""config.json of Hugging Face's transformers, as a config here and back.

What a config.json asks for that would be computed otherwise here is refused by
name.
"""

from typing import Any

from specsamp.errors import UserError
from specsamp.models import TransformerConfig
from specsamp.models.config import RopeScaling

_ACTIVATIONS = {
  'silu': 'silu',
  'swish': 'silu',
  'gelu': 'gelu',
  'gelu_new': 'gelu_tanh',
  'gelu_pytorch_tanh': 'gelu_tanh',
  'relu': 'relu',
}
_HF_ACTIVATIONS = {
  'silu': 'silu',
  'gelu': 'gelu',
  'gelu_tanh': 'gelu_new',
  'relu': 'relu',
}


class _Values:
  """What a config.json holds, and what it must hold."""

  def __init__(self, values: dict[str, Any]):
    self._values = values
    # Of weights that were packed when they were trained or saved.
    self.must('quantization_config', None)

  def get(self, key: str, default: Any) -> Any:
    value = self._values.get(key)
    return default if value is None else value

  def need(self, key: str) -> Any:
    if self._values.get(key) is None:
      raise UserError(f'no {key}')
    return self._values[key]

  def must(self, key: str, expected: Any) -> None:
    """Refuses a value under which something else is computed."""
    got = self.get(key, expected)
    if got != expected:
      raise UserError(f'{key}: got {got!r}, only {expected!r} is supported')

  def activation(self, key: str) -> str:
    got = self.need(key)
    if got not in _ACTIVATIONS:
      raise UserError(
        f'{key}: got {got!r}, expected one of {", ".join(_ACTIVATIONS)}'
      )
    return _ACTIVATIONS[got]

  def rope(self) -> dict[str, Any]:
    """rope_theta and rope_scaling, by the keys of any version."""
    # Where both are there transformers takes the older name's.
    both = self.get('rope_scaling', {}) or self.get('rope_parameters', {})
    kind = both.get('rope_type', both.get('type', 'default'))
    theta = both.get('rope_theta', self.get('rope_theta', 10_000.0))
    if both.get('partial_rotary_factor', 1) != 1:
      raise UserError('partial_rotary_factor: only 1 is supported')
    self.must('partial_rotary_factor', 1)
    if kind == 'default':
      scaling = None
    elif kind == 'linear':
      scaling = RopeScaling('linear', float(both['factor']))
    elif kind == 'llama3':
      scaling = RopeScaling(
        'llama3',
        float(both['factor']),
        float(both['low_freq_factor']),
        float(both['high_freq_factor']),
        both['original_max_position_embeddings'],
      )
    else:
      raise UserError(
        f'rope_type: got {kind!r}, expected default, linear or llama3'
      )
    return dict(rope_theta=float(theta), rope_scaling=scaling)

  def window(self, model_type: str) -> float:
    """Positions within which attention sees everything."""
    if model_type == 'llama':
      return float('inf')
    kinds = set(self.get('layer_types', [])) or {'sliding_attention'}
    unknown = kinds - {'full_attention', 'sliding_attention'}
    if unknown:
      raise UserError(f'layer_types: {unknown.pop()!r} is not supported')
    if model_type == 'mistral':
      # Without the key transformers takes the window of the first Mistral.
      window = self._values.get('sliding_window', 4096)
    else:
      window = self.get('use_sliding_window', False) and self.need(
        'sliding_window'
      )
    return window if window and 'sliding_attention' in kinds else float('inf')


def read_llama(values: dict[str, Any]) -> TransformerConfig:
  """LLaMA, Mistral, Qwen2 and Qwen3.

  Where attention is to a sliding window, texts are not to be longer than the
  window: up to there it is attention to everything.
  """
  v, kind = _Values(values), values['model_type']
  heads, width = v.need('num_attention_heads'), v.need('hidden_size')
  attention, mlp = v.get('attention_bias', False), v.get('mlp_bias', False)
  if mlp and not attention:
    raise UserError('mlp_bias: only supported with attention_bias')
  biases = 'all' if mlp else 'attention' if attention else 'none'
  if kind == 'qwen2':
    biases = 'qkv'
  return TransformerConfig(
    vocab_size=v.need('vocab_size'),
    width=width,
    num_layers=v.need('num_hidden_layers'),
    num_heads=heads,
    num_kv_heads=v.get('num_key_value_heads', heads)
    if kind == 'llama'
    else v.need('num_key_value_heads'),
    head_dim=v.need('head_dim')
    if kind == 'qwen3'
    else v.get('head_dim', width // heads),
    mlp_width=v.need('intermediate_size'),
    max_length=min(v.need('max_position_embeddings'), v.window(kind)),
    activation=v.activation('hidden_act'),
    biases=biases,
    qk_norm=kind == 'qwen3',
    tied_embeddings=v.get('tie_word_embeddings', False),
    norm_epsilon=v.need('rms_norm_eps'),
    **v.rope(),
  )


def read_opt(values: dict[str, Any]) -> TransformerConfig:
  """OPT, the sizes with norms before blocks."""
  v = _Values(values)
  v.must('do_layer_norm_before', True)
  v.must('_remove_final_layer_norm', False)
  v.must('enable_bias', True)
  v.must('layer_norm_elementwise_affine', True)
  v.must('word_embed_proj_dim', v.need('hidden_size'))
  return _learned(
    vocab_size=v.need('vocab_size'),
    width=v.need('hidden_size'),
    num_layers=v.need('num_hidden_layers'),
    num_heads=v.need('num_attention_heads'),
    mlp_width=v.need('ffn_dim'),
    max_length=v.need('max_position_embeddings'),
    activation=v.activation('activation_function'),
    tied_embeddings=v.get('tie_word_embeddings', True),
    norm_epsilon=1e-5,
  )


def read_gpt2(values: dict[str, Any]) -> TransformerConfig:
  """GPT-2."""
  v = _Values(values)
  v.must('scale_attn_weights', True)
  v.must('scale_attn_by_inverse_layer_idx', False)
  v.must('add_cross_attention', False)
  width = v.need('n_embd')
  return _learned(
    vocab_size=v.need('vocab_size'),
    width=width,
    num_layers=v.need('n_layer'),
    num_heads=v.need('n_head'),
    mlp_width=v.get('n_inner', 4 * width),
    max_length=v.need('n_positions'),
    activation=v.activation('activation_function'),
    tied_embeddings=v.get('tie_word_embeddings', True),
    norm_epsilon=v.need('layer_norm_epsilon'),
  )


def _learned(width: int, num_heads: int, **values) -> TransformerConfig:
  """What OPT and GPT-2 have in common."""
  if width % num_heads:
    raise UserError(f'{num_heads} heads do not divide a width of {width}')
  return TransformerConfig(
    width=width,
    num_heads=num_heads,
    num_kv_heads=num_heads,
    head_dim=width // num_heads,
    norm='layer',
    positions='learned',
    gated=False,
    biases='all',
    **values,
  )


def write(config: TransformerConfig) -> dict[str, Any]:
  """The config.json of the architecture that computes what a config describes.

  Raises:
    UserError: there is none.
  """
  heads = config.num_heads
  common = dict(
    vocab_size=config.num_tokens, tie_word_embeddings=config.tied_embeddings
  )
  if (config.norm, config.positions, config.gated) == ('rms', 'rotary', True):
    return _write_llama(config) | common
  learned = (
    config.norm == 'layer'
    and config.positions == 'learned'
    and not config.gated
    and config.biases == 'all'
    and not config.qk_norm
    and config.num_kv_heads == heads
    and config.head_dim * heads == config.width
  )
  if not learned:
    raise UserError(
      'export: no architecture of transformers has '
      f'{config.norm} norms, {config.positions} positions, '
      f'{"a" if config.gated else "no"} gated MLP, biases '
      f'{config.biases!r}, {heads} heads of {config.head_dim} and '
      f'{config.num_kv_heads} of keys at a width of {config.width}'
    )
  activation = _HF_ACTIVATIONS[config.activation]
  if config.activation == 'relu' and config.norm_epsilon == 1e-5:
    return common | dict(
      architectures=['OPTForCausalLM'],
      model_type='opt',
      hidden_size=config.width,
      word_embed_proj_dim=config.width,
      num_hidden_layers=config.num_layers,
      num_attention_heads=heads,
      ffn_dim=config.mlp_width,
      max_position_embeddings=config.max_length,
      activation_function=activation,
    )
  return common | dict(
    architectures=['GPT2LMHeadModel'],
    model_type='gpt2',
    n_embd=config.width,
    n_layer=config.num_layers,
    n_head=heads,
    n_inner=config.mlp_width,
    n_positions=config.max_length,
    activation_function=activation,
    layer_norm_epsilon=config.norm_epsilon,
  )


def _write_llama(config: TransformerConfig) -> dict[str, Any]:
  if config.qk_norm:
    kind, name = 'qwen3', 'Qwen3ForCausalLM'
  elif config.biases == 'qkv':
    kind, name = 'qwen2', 'Qwen2ForCausalLM'
  else:
    kind, name = 'llama', 'LlamaForCausalLM'
  if kind == 'qwen3' and config.biases not in ('none', 'attention'):
    raise UserError(
      'export: no architecture of transformers has norms of queries and keys '
      f'and biases {config.biases!r}'
    )
  rope: dict[str, Any] = dict(rope_type='default')
  scaling = config.rope_scaling
  if scaling:
    rope = dict(rope_type=scaling.kind, factor=scaling.factor)
  if scaling and scaling.kind == 'llama3':
    rope |= dict(
      low_freq_factor=scaling.low_frequency,
      high_freq_factor=scaling.high_frequency,
      original_max_position_embeddings=scaling.original_length,
    )
  return dict(
    architectures=[name],
    model_type=kind,
    hidden_size=config.width,
    num_hidden_layers=config.num_layers,
    num_attention_heads=config.num_heads,
    num_key_value_heads=config.num_kv_heads,
    head_dim=config.head_dim,
    intermediate_size=config.mlp_width,
    max_position_embeddings=config.max_length,
    hidden_act=_HF_ACTIVATIONS[config.activation],
    rms_norm_eps=config.norm_epsilon,
    attention_bias=config.biases in ('attention', 'all'),
    mlp_bias=config.biases == 'all',
    # By the keys of today, and by those that other programs still read.
    rope_parameters=rope | dict(rope_theta=config.rope_theta),
    rope_theta=config.rope_theta,
    rope_scaling=rope if scaling else None,
  )
