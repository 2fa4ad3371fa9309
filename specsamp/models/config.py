"""The shape of a decoder-only transformer."""

import dataclasses
import math
from typing import Any, Literal, get_args, get_origin, get_type_hints

from specsamp.errors import check_name

# Of a config that is a mistake: beyond, to look at its shapes takes for ever.
_MOST, _MOST_OF_OTHERS = {'num_layers': 2**12}, 2**24

Dtype = Literal['float32', 'bfloat16', 'float16']


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Rotary wavelengths stretched for texts longer than those of training.

  Attributes:
    kind: linear stretches all of them (Chen et al. 2306.15595); llama3 those
      that the original length holds few of, the longest in full (Llama 3.1).
    factor: by how much.
    low_frequency: llama3: a wavelength that the original length holds no more
      than so often is stretched in full.
    high_frequency: llama3: one that it holds at least so often is left alone.
    original_length: llama3: positions of training before the stretch.
  """

  kind: Literal['linear', 'llama3']
  factor: float
  low_frequency: float = 1.0
  high_frequency: float = 4.0
  original_length: int = 8192

  def __post_init__(self):
    _check_fields(self)
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

  The fields span the Chinchilla, LLaMA, OPT and GPT-2 families; `presets`
  holds their published shapes.

  Attributes:
    vocab_size: V, rows of the embedding.
    width: D, of the residual stream.
    num_layers: blocks of attention and MLP, each with a norm before it.
    num_heads: H query heads.
    num_kv_heads: G key and value heads; divides `num_heads`.
    head_dim: width of one head.
    mlp_width: F, hidden width of the MLP.
    max_length: positions that the model was trained for; prompt and text
      together may not be longer.
    norm: RMS norm, or layer norm with its bias.
    positions: rotary (LLaMA), learned (GPT-2, OPT), or relative as in
      Transformer-XL (Gopher, Chinchilla).
    rope_theta: base of the rotary wavelengths.
    rope_scaling: how they are stretched, or None.
    qk_norm: an RMS norm over each head's query and key, before rotation.
    gated: a gated MLP, act(gate(x)) * up(x); otherwise act(up(x)).
    activation: of the MLP.
    biases: on which projections: of queries, keys and values; of all of
      attention; of attention and MLP.
    tied_embeddings: the LM head is the embedding, transposed.
    norm_epsilon: added to the variance in every norm.
    padding: how many of the vocabulary's last rows are no tokens; their
      logits are -1e30, their probabilities 0.
    dtype: of activations and caches. Parameters keep the dtype they have and
      are cast to this one where they are used. bfloat16 suits accelerators;
      on CPUs it is many times slower than float32. float16 is for GPUs that
      have no bfloat16; `float16` has what it computes in float32 then.
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
    _check_fields(self, least={'padding': 0})
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
    """Tokens that can be emitted, the vocabulary without its padding."""
    return self.vocab_size - self.padding

  @classmethod
  def from_dict(cls, values: dict[str, Any]) -> 'TransformerConfig':
    """The config that `dataclasses.asdict` wrote; ValueError on bad keys."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(fields))
    missing = sorted(
      name
      for name, field in fields.items()
      if field.default is dataclasses.MISSING and name not in values
    )
    if unknown or missing:
      raise ValueError(
        f'model config: unknown keys {unknown}, missing keys {missing}'
      )
    scaling = values.get('rope_scaling')
    if scaling is not None:
      try:
        values = values | {'rope_scaling': RopeScaling(**scaling)}
      except TypeError as error:
        raise ValueError(f'model config: rope_scaling: {error}') from None
    return cls(**values)


def _check_fields(config, least: dict[str, int] | None = None) -> None:
  """Fields of plain types; ValueError names the first wrong one."""
  for name, hint in get_type_hints(type(config)).items():
    value = getattr(config, name)
    choices = get_args(hint)
    if get_origin(hint) is Literal:
      check_name(name, value, choices)
    smallest = (least or {}).get(name, 1)
    if hint is bool and type(value) is not bool:
      raise ValueError(f'{name} must be true or false, got {value!r}')
    if hint is float and not (
      type(value) in (int, float) and 0 < value < math.inf
    ):
      raise ValueError(f'{name} must be a positive number, got {value!r}')
    if hint is int and (type(value) is not int or value < smallest):
      kind = 'a positive integer' if smallest else 'an integer of at least 0'
      raise ValueError(f'{name} must be {kind}, got {value!r}')
    most = _MOST.get(name, _MOST_OF_OTHERS)
    if hint is int and value > most:
      raise ValueError(f'{name} must be at most {most}, got {value!r}')
