"""The shape of a decoder-only transformer."""

import dataclasses
import math
from typing import Any, Literal, get_args, get_origin, get_type_hints

from specsamp.errors import check_name

# Bounds of integers; the others are from 1 to 2**24. Larger numbers are
# mistakes, and even the shapes of such a model take forever.
_MIN, _MAX = {'padding': 0}, {'num_layers': 2**12}

Dtype = Literal['float32', 'bfloat16', 'float16']


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Longer rotary wavelengths, for contexts longer than those of training.

  Attributes:
    kind: 'linear' stretches all wavelengths (Chen et al. 2306.15595). 'llama3'
      stretches the longer ones, by how often they fit into the original length
      (Llama 3.1).
    factor: ratio of the new wavelengths to the old ones.
    low_frequency: llama3: wavelengths that fit at most this often are stretched
      in full.
    high_frequency: llama3: wavelengths that fit at least this often are kept.
    original_length: llama3: positions of training before the stretch.
  """

  kind: Literal['linear', 'llama3']
  factor: float
  low_frequency: float = 1.0
  high_frequency: float = 4.0
  original_length: int = 8192

  def __post_init__(self):
    _check_values(self)
    if not self.factor >= 1:
      raise ValueError(f'factor must be at least 1, got {self.factor!r}')
    if not 0 < self.low_frequency < self.high_frequency:
      raise ValueError(
        'low_frequency must be above 0 and below high_frequency, got '
        f'{self.low_frequency!r} and {self.high_frequency!r}'
      )


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Everything that fixes a transformer's parameters and its mathematics.

  The fields span Chinchilla, LLaMA, OPT and GPT-2; `presets` has their shapes.

  Attributes:
    vocab_size: V, rows of the embedding.
    width: D, width of the residual stream.
    num_layers: number of blocks, each with attention and an MLP.
    num_heads: H query heads.
    num_kv_heads: U key and value heads; divides `num_heads`.
    head_dim: Z, width of one head.
    mlp_width: F, hidden width of the MLP.
    max_length: positions of training, which bound prompt plus completion.
    norm: RMS norm, or layer norm with its bias.
    positions: rotary (LLaMA), learned (GPT-2, OPT), or relative as in
      Transformer-XL (Gopher, Chinchilla).
    rope_theta: base of the rotary wavelengths.
    rope_scaling: scaling of these wavelengths, or None.
    qk_norm: applies an RMS norm to each head's query and key before rotation.
    gated: a gated MLP, act(gate(x)) * up(x), instead of act(up(x)).
    activation: activation function of the MLP.
    biases: projections that have biases: none; those to queries, keys and
      values; all of attention; attention and MLP.
    tied_embeddings: the LM head is the embedding, transposed.
    norm_epsilon: added to the variance in every norm.
    padding: number of rows at the end of the vocabulary that are not tokens.
      Their logits are -1e30, their probabilities 0.
    dtype: type of activations and caches. Parameters are cast to it where they
      are used. bfloat16 suits accelerators, and is many times slower than
      float32 on CPUs. float16 is for GPUs without bfloat16, see
      `specsamp.models.float16`.
  """

  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_width: int
  max_length: int
  norm: Literal['rms', 'layer'] = 'rms'
  positions: Literal['rotary', 'learned', 'relative'] = 'rotary'
  rope_theta: float = 10_000.0
  rope_scaling: RopeScaling | None = None
  qk_norm: bool = False
  gated: bool = True
  activation: Literal['silu', 'gelu', 'gelu_tanh', 'relu'] = 'silu'
  biases: Literal['none', 'qkv', 'attention', 'all'] = 'none'
  tied_embeddings: bool = False
  norm_epsilon: float = 1e-6
  padding: int = 0
  dtype: Dtype = 'float32'

  def __post_init__(self):
    _check_values(self)
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f'num_kv_heads must divide num_heads={self.num_heads}, '
        f'got {self.num_kv_heads}'
      )
    if self.positions == 'rotary' and self.head_dim % 2:
      raise ValueError(
        f'rotary positions need an even head_dim, got {self.head_dim}'
      )
    if self.rope_scaling and self.positions != 'rotary':
      raise ValueError(
        f'rope_scaling is for rotary positions, got {self.positions!r}'
      )
    if self.padding >= self.vocab_size:
      raise ValueError(
        f'padding must be below vocab_size={self.vocab_size}, got '
        f'{self.padding}'
      )

  @property
  def num_tokens(self) -> int:
    """Number of tokens that can be emitted: the vocabulary less its padding."""
    return self.vocab_size - self.padding

  @classmethod
  def from_dict(cls, values: dict[str, Any]) -> 'TransformerConfig':
    """Returns the config that `dataclasses.asdict` wrote."""
    try:
      values = dict(values)
      if values.get('rope_scaling') is not None:
        values['rope_scaling'] = RopeScaling(**values['rope_scaling'])
      return cls(**values)
    except TypeError as error:  # names the unknown or missing keys
      raise ValueError(f'model config: {error}') from None


def _check_values(config) -> None:
  """Raises ValueError for the first field whose value does not fit its type."""
  for name, hint in get_type_hints(type(config)).items():
    value = getattr(config, name)
    is_number = type(value) in (int, float) and 0 < value < math.inf
    if get_origin(hint) is Literal:
      check_name(name, value, get_args(hint))
    elif hint is bool and type(value) is not bool:
      raise ValueError(f'{name} must be true or false, got {value!r}')
    elif hint is float and not is_number:
      raise ValueError(f'{name} must be a positive number, got {value!r}')
    elif hint is int:
      smallest, largest = _MIN.get(name, 1), _MAX.get(name, 2**24)
      if type(value) is not int or not smallest <= value <= largest:
        raise ValueError(
          f'{name} must be an integer from {smallest} to {largest}, got '
          f'{value!r}'
        )
