"""The shape of a decoder-only transformer."""

import dataclasses
from typing import Any, Literal, get_args, get_type_hints


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Everything that fixes a transformer's parameters and its mathematics.

  The fields span the Chinchilla, LLaMA, OPT and GPT-2 families; `presets`
  holds their published shapes.

  Attributes:
    vocab_size: V, tokens that have a logit.
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
    gated: a gated MLP, act(gate(x)) * up(x); otherwise act(up(x)).
    activation: of the MLP.
    biases: on every projection of attention and MLP.
    tied_embeddings: the LM head is the embedding, transposed.
    norm_epsilon: added to the variance in every norm.
    dtype: of activations and caches. Parameters keep the dtype they have and
      are cast to this one where they are used. bfloat16 suits accelerators;
      on CPUs it is many times slower than float32.
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
  gated: bool = True
  activation: Literal['silu', 'gelu', 'gelu_tanh', 'relu'] = 'silu'
  biases: bool = False
  tied_embeddings: bool = False
  norm_epsilon: float = 1e-6
  dtype: Literal['float32', 'bfloat16'] = 'float32'

  def __post_init__(self):
    for name, hint in get_type_hints(type(self)).items():
      value = getattr(self, name)
      choices = get_args(hint)
      if choices and value not in choices:
        raise ValueError(f'{name} must be one of {choices}, got {value!r}')
      if hint is int and (type(value) is not int or value < 1):
        raise ValueError(f'{name} must be a positive integer, got {value!r}')
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f'num_kv_heads must divide num_heads={self.num_heads}, '
        f'got {self.num_kv_heads}'
      )
    if self.positions == 'rotary' and self.head_dim % 2:
      raise ValueError(
        f'rotary positions need an even head_dim, got {self.head_dim}'
      )

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
    return cls(**values)
