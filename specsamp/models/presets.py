"""Published shapes. Each function returns a `TransformerConfig`."""

from specsamp.models.config import TransformerConfig


def chinchilla(width: int, num_heads: int, num_layers: int, **changes):
  """Gopher's architecture (Rae et al. 2112.11446), heads of width 128."""
  values = dict(
    vocab_size=32_000,
    width=width,
    num_layers=num_layers,
    num_heads=num_heads,
    num_kv_heads=num_heads,
    head_dim=128,
    mlp_width=4 * width,
    max_length=2048,
    norm='rms',
    positions='relative',
    gated=False,
    activation='gelu',
    tied_embeddings=True,
    dtype='bfloat16',
  )
  return TransformerConfig(**(values | changes))


def chinchilla_70b() -> TransformerConfig:
  """The target of Chen et al. 2302.01318, Table 2."""
  return chinchilla(width=8192, num_heads=64, num_layers=80)


def chinchilla_draft_4b() -> TransformerConfig:
  """The wide, shallow draft of Chen et al. 2302.01318, Table 2."""
  return chinchilla(width=6144, num_heads=48, num_layers=8)


def chinchilla_7b() -> TransformerConfig:
  """The compute-optimal 7B that Chen et al. 2302.01318, section 5, weigh up.

  They don't give its shape; this one has 7.1B parameters.
  """
  return chinchilla(width=4096, num_heads=32, num_layers=32)


def llama(
  width: int, num_heads: int, num_layers: int, mlp_width: int, **changes
):
  """LLaMA (Touvron et al. 2302.13971)."""
  values = dict(
    vocab_size=32_000,
    width=width,
    num_layers=num_layers,
    num_heads=num_heads,
    num_kv_heads=num_heads,
    head_dim=width // num_heads,
    mlp_width=mlp_width,
    max_length=2048,
    dtype='bfloat16',
  )
  return TransformerConfig(**(values | changes))


def opt(width: int, num_heads: int, num_layers: int, **changes):
  """OPT (Zhang et al. 2205.01068), the sizes with norms before blocks."""
  values = dict(
    vocab_size=50_272,
    width=width,
    num_layers=num_layers,
    num_heads=num_heads,
    num_kv_heads=num_heads,
    head_dim=width // num_heads,
    mlp_width=4 * width,
    max_length=2048,
    norm='layer',
    positions='learned',
    gated=False,
    activation='relu',
    biases='all',
    tied_embeddings=True,
    norm_epsilon=1e-5,
    dtype='bfloat16',
  )
  return TransformerConfig(**(values | changes))


def gpt2(width: int, num_heads: int, num_layers: int, **changes):
  """GPT-2 (Radford et al. 2019): OPT's layout with a smooth activation."""
  values = dict(vocab_size=50_257, max_length=1024, activation='gelu_tanh')
  return opt(width, num_heads, num_layers, **(values | changes))
