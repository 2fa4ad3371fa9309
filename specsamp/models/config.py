"""The shape of a decoder-only transformer."""

import dataclasses
import math
from typing import Any, Literal, get_args, get_origin, get_type_hints

from specsamp.errors import check_name

# Bounds of integers; the others are from 1 to 2**24. Larger numbers are
# mistakes, and even the shapes of such a model take forever.
_MIN = dict(padding=0, num_experts=0, experts_per_token=0, expert_width=0)
_MAX = {'num_layers': 2**12}
_NUMBERS = (float, float | None)

Dtype = Literal['float32', 'bfloat16', 'float16']


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Longer rotary wavelengths, for contexts longer than those of training.

  Attributes:
    kind: 'linear' stretches all wavelengths (Chen et al. 2306.15595). 'llama3'
      and 'yarn' stretch the longer ones, by how often they fit into the
      original length. Between the two bounds, the stretch of llama3 (Llama 3.1)
      is linear in this number, that of yarn (Peng et al. 2309.00071) in the
      index of the wavelength.
    factor: ratio of the new wavelengths to the old ones.
    low_frequency: wavelengths that fit at most this often are stretched in
      full; not for linear.
    high_frequency: wavelengths that fit at least this often are kept; not for
      linear.
    original_length: positions of training before the stretch; not for linear.
    rounded: yarn: the indices of the two bounds are integers.
    attention_factor: yarn: factor of the rotated queries and keys.
  """

  kind: Literal['linear', 'llama3', 'yarn']
  factor: float
  low_frequency: float = 1.0
  high_frequency: float = 4.0
  original_length: int = 8192
  rounded: bool = True
  attention_factor: float = 1.0

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

  The fields span Chinchilla, OPT, GPT-2, and LLaMA and the families after it up
  to Gemma 3; `presets` has shapes.

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
    rotary_fraction: share of a head that is rotated; a whole number of pairs.
    query_growth: b, for queries that grow with their position:
      1 + b ln(1 + floor(position / rope_scaling.original_length)) times.
    windows: number of positions that a layer sees, its own included; 0 is all.
      The tuple is repeated over the layers; () is 0 for all.
    window_rope_theta: rope_theta of layers with a window, whose wavelengths are
      then not scaled. None is the rope of the other layers.
    query_scale: factor of products of queries and keys; None is
      head_dim**-0.5.
    score_cap: c, bounds these products x to c tanh(x / c); None is no bound.
    logit_cap: the same for logits.
    embedding_scale: factor of the tokens' embeddings.
    qk_norm: applies an RMS norm to each head's query and key before rotation.
    output_norms: also norms the outputs of attention and MLP, before their
      addition to the residual stream.
    gated: a gated MLP, act(gate(x)) * up(x), instead of act(up(x)).
    activation: activation function of the MLP.
    biases: projections that have biases: none; those to queries, keys and
      values; all of attention; attention and MLP.
    num_experts: E, experts of a layer, in place of its MLP; 0 for dense MLPs.
    experts_per_token: K, number of experts that each token runs through.
    expert_width: hidden width of an expert.
    router: weights of a token's experts. 'top_k' is a softmax over the scores
      of its K experts, 'softmax' one over all scores, whose sum over the K
      experts is below 1.
    dense_layers: layers that have a dense MLP all the same.
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
  rotary_fraction: float = 1.0
  query_growth: float | None = None
  windows: tuple[int, ...] = ()
  window_rope_theta: float | None = None
  query_scale: float | None = None
  score_cap: float | None = None
  logit_cap: float | None = None
  embedding_scale: float = 1.0
  qk_norm: bool = False
  output_norms: bool = False
  gated: bool = True
  activation: Literal['silu', 'gelu', 'gelu_tanh', 'relu'] = 'silu'
  biases: Literal['none', 'qkv', 'attention', 'all'] = 'none'
  num_experts: int = 0
  experts_per_token: int = 0
  expert_width: int = 0
  router: Literal['top_k', 'softmax'] = 'top_k'
  dense_layers: tuple[int, ...] = ()
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
    if self.positions != 'rotary':
      for name in ('rope_scaling', 'window_rope_theta', 'query_growth'):
        if getattr(self, name) is not None:
          raise ValueError(
            f'{name} is for rotary positions, got {self.positions!r}'
          )
    rotated = self.head_dim * self.rotary_fraction
    is_even = 2 <= rotated <= self.head_dim and rotated % 2 == 0
    if self.positions == 'rotary' and not is_even:
      raise ValueError(
        f'rotary_fraction must be a whole number of pairs of head_dim='
        f'{self.head_dim}, got {self.rotary_fraction}'
      )
    if self.query_growth and not self.rope_scaling:
      raise ValueError('query_growth needs a rope_scaling.original_length')
    if not all(type(n) is int and 0 <= n <= 2**24 for n in self.windows):
      raise ValueError(
        f'windows must be integers of at least 0, got {self.windows!r}'
      )
    self._check_experts()
    if self.padding >= self.vocab_size:
      raise ValueError(
        f'padding must be below vocab_size={self.vocab_size}, got '
        f'{self.padding}'
      )

  def _check_experts(self) -> None:
    """Raises ValueError for experts that no layer computes."""
    count = self.num_experts
    if not min(count, 1) <= self.experts_per_token <= count:
      raise ValueError(
        f'experts_per_token must be 1 to num_experts={count}, or 0 without '
        f'experts, got {self.experts_per_token}'
      )
    if bool(count) != bool(self.expert_width):
      raise ValueError(
        f'expert_width is for experts: got {self.expert_width} with '
        f'num_experts={count}'
      )
    if count and (not self.gated or self.biases == 'all'):
      raise ValueError(
        'experts are gated MLPs without biases, got gated='
        f'{self.gated} and biases={self.biases!r}'
      )
    if not all(type(n) is int and 0 <= n <= 2**12 for n in self.dense_layers):
      raise ValueError(
        f'dense_layers must be integers of at least 0, got '
        f'{self.dense_layers!r}'
      )

  @property
  def num_tokens(self) -> int:
    """Number of tokens that can be emitted: the vocabulary less its padding."""
    return self.vocab_size - self.padding

  def window(self, layer: int) -> int:
    """Returns the number of positions that a layer sees; 0 is all."""
    return self.windows[layer % len(self.windows)] if self.windows else 0

  def of_layer(self, layer: int) -> 'TransformerConfig':
    """Returns the config of a layer, whose rope and MLP all its layers have."""
    config = dataclasses.replace(self, dense_layers=())
    if layer in self.dense_layers:
      config = config.without_experts()
    if not self.window_rope_theta or not self.window(layer):
      return dataclasses.replace(config, window_rope_theta=None)
    return dataclasses.replace(
      config,
      rope_theta=self.window_rope_theta,
      rope_scaling=None,
      window_rope_theta=None,
    )

  def without_experts(self) -> 'TransformerConfig':
    """Returns the config with a dense MLP in every layer."""
    return dataclasses.replace(
      self,
      num_experts=0,
      experts_per_token=0,
      expert_width=0,
      router='top_k',
      dense_layers=(),
    )

  def for_drafter(self, num_layers: int) -> 'TransformerConfig':
    """Returns the config of a drafter's layers for a target of this config.

    They have the widths and the rope of the target's layers, a dense MLP, and
    see the whole sequence. The other fields are those of LLaMA.
    """
    return dataclasses.replace(
      self.without_experts(),
      num_layers=num_layers,
      query_growth=None,
      windows=(),
      window_rope_theta=None,
      query_scale=None,
      score_cap=None,
      output_norms=False,
    )

  @classmethod
  def from_dict(cls, values: dict[str, Any]) -> 'TransformerConfig':
    """Returns the config that `dataclasses.asdict` wrote."""
    try:
      values = dict(values)
      if values.get('rope_scaling') is not None:
        values['rope_scaling'] = RopeScaling(**values['rope_scaling'])
      for name in ('windows', 'dense_layers'):
        values[name] = tuple(values.get(name, ()))
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
    elif (
      hint in _NUMBERS
      and not is_number
      and (value, hint) != (None, float | None)
    ):
      raise ValueError(f'{name} must be a positive number, got {value!r}')
    elif hint is int:
      smallest, largest = _MIN.get(name, 1), _MAX.get(name, 2**24)
      if type(value) is not int or not smallest <= value <= largest:
        raise ValueError(
          f'{name} must be an integer from {smallest} to {largest}, got '
          f'{value!r}'
        )
