"""Published model shapes. Each function returns a `TransformerConfig`."""

import dataclasses

from specsamp.models.config import RopeScaling, TransformerConfig


def _shape(width: int, num_heads: int, num_layers: int, **values):
  """Returns a bfloat16 shape; `values` replace the defaults of LLaMA 1."""
  defaults = dict(
    vocab_size=32_000,
    num_kv_heads=num_heads,
    head_dim=width // num_heads,
    mlp_width=4 * width,
    max_length=2048,
    dtype='bfloat16',
  )
  return TransformerConfig(
    width=width,
    num_heads=num_heads,
    num_layers=num_layers,
    **(defaults | values),
  )


def chinchilla(width: int, num_heads: int, num_layers: int, **changes):
  """Returns a shape of Gopher's architecture (Rae et al. 2112.11446)."""
  values = dict(
    positions='relative', gated=False, activation='gelu', tied_embeddings=True
  )
  return _shape(width, num_heads, num_layers, **(values | changes))


def chinchilla_70b() -> TransformerConfig:
  """Returns the target of Chen et al. 2302.01318, Table 2."""
  return chinchilla(width=8192, num_heads=64, num_layers=80)


def chinchilla_draft_4b() -> TransformerConfig:
  """Returns the wide, shallow draft of Chen et al. 2302.01318, Table 2."""
  return chinchilla(width=6144, num_heads=48, num_layers=8)


def chinchilla_7b() -> TransformerConfig:
  """Returns a shape of 7.1B for the 7B draft in section 5 of 2302.01318."""
  return chinchilla(width=4096, num_heads=32, num_layers=32)


def llama(
  width: int, num_heads: int, num_layers: int, mlp_width: int, **changes
):
  """Returns a LLaMA shape (Touvron et al. 2302.13971)."""
  return _shape(width, num_heads, num_layers, mlp_width=mlp_width, **changes)


def llama_7b() -> TransformerConfig:
  """Returns the shape of LLaMA 7B, and of Vicuna 7B, trained from it."""
  return llama(width=4096, num_heads=32, num_layers=32, mlp_width=11_008)


def llama_13b() -> TransformerConfig:
  """Returns the shape of LLaMA 13B and Vicuna 13B."""
  return llama(width=5120, num_heads=40, num_layers=40, mlp_width=13_824)


def llama_33b() -> TransformerConfig:
  """Returns the shape of LLaMA 33B and Vicuna 33B."""
  return llama(width=6656, num_heads=52, num_layers=60, mlp_width=17_920)


def llama_68m() -> TransformerConfig:
  """Returns the shape of Miao et al. 2305.09781's draft and Vicuna 68M."""
  return llama(width=768, num_heads=12, num_layers=2, mlp_width=3072)


def llama_160m() -> TransformerConfig:
  """Returns the larger draft of Miao et al. 2305.09781."""
  return llama(width=768, num_heads=12, num_layers=12, mlp_width=3072)


def llama2(config: TransformerConfig) -> TransformerConfig:
  """Returns a LLaMA shape changed to LLaMA 2 (Touvron et al. 2307.09288)."""
  return dataclasses.replace(config, max_length=4096, norm_epsilon=1e-5)


def llama31(width: int, num_heads: int, num_layers: int, mlp_width: int):
  """Returns a Llama 3.1 shape (2407.21783)."""
  return llama(
    width,
    num_heads,
    num_layers,
    mlp_width,
    vocab_size=128_256,
    num_kv_heads=8,
    max_length=131_072,
    norm_epsilon=1e-5,
    rope_theta=500_000.0,
    rope_scaling=RopeScaling('llama3', factor=8.0),
  )


def llama3_8b() -> TransformerConfig:
  """Returns Llama 3 8B (2407.21783): Llama 3.1 without its longer context."""
  return dataclasses.replace(llama31_8b(), max_length=8192, rope_scaling=None)


def llama31_8b() -> TransformerConfig:
  return llama31(width=4096, num_heads=32, num_layers=32, mlp_width=14_336)


def llama31_70b() -> TransformerConfig:
  return llama31(width=8192, num_heads=64, num_layers=80, mlp_width=28_672)


def llama32_1b() -> TransformerConfig:
  """Returns Llama 3.2 1B, which has the vocabulary of Llama 3.1."""
  return dataclasses.replace(
    llama31(width=2048, num_heads=32, num_layers=16, mlp_width=8192),
    tied_embeddings=True,
    rope_scaling=RopeScaling('llama3', factor=32.0),
  )


def smollm2_135m() -> TransformerConfig:
  """Returns the shape of SmolLM2-135M (2502.02737)."""
  return llama(
    576,
    9,
    30,
    1536,
    vocab_size=49_152,
    num_kv_heads=3,
    max_length=8192,
    rope_theta=100_000.0,
    tied_embeddings=True,
  )


def qwen25_coder(width: int, num_heads: int, num_layers: int, mlp_width: int):
  """Returns a small Qwen2.5-Coder shape (2409.12186)."""
  return llama(
    width,
    num_heads,
    num_layers,
    mlp_width,
    vocab_size=151_936,
    num_kv_heads=2,
    max_length=32_768,
    rope_theta=1_000_000.0,
    tied_embeddings=True,
    biases='qkv',
  )


def qwen25_coder_1_5b() -> TransformerConfig:
  return qwen25_coder(width=1536, num_heads=12, num_layers=28, mlp_width=8960)


def qwen25_coder_0_5b() -> TransformerConfig:
  return qwen25_coder(width=896, num_heads=14, num_layers=24, mlp_width=4864)


def qwen3(
  width: int, num_heads: int, num_layers: int, mlp_width: int, **changes
):
  """Returns a Qwen3 shape (2505.09388)."""
  values = dict(
    vocab_size=151_936,
    num_kv_heads=8,
    head_dim=128,
    max_length=40_960,
    rope_theta=1_000_000.0,
    qk_norm=True,
  )
  return llama(width, num_heads, num_layers, mlp_width, **(values | changes))


def qwen3_8b() -> TransformerConfig:
  return qwen3(width=4096, num_heads=32, num_layers=36, mlp_width=12_288)


def qwen3_0_6b() -> TransformerConfig:
  return qwen3(
    width=1024,
    num_heads=16,
    num_layers=28,
    mlp_width=3072,
    tied_embeddings=True,
  )


def qwen3_30b_a3b() -> TransformerConfig:
  """Returns Qwen3 30B-A3B: each token runs through 8 of 128 experts."""
  return qwen3(
    width=2048,
    num_heads=32,
    num_layers=48,
    mlp_width=6144,
    num_kv_heads=4,
    num_experts=128,
    experts_per_token=8,
    expert_width=768,
  )


def mixtral_8x7b() -> TransformerConfig:
  """Returns Mixtral 8x7B (2401.04088): 2 of 8 experts per token."""
  return llama(
    width=4096,
    num_heads=32,
    num_layers=32,
    mlp_width=14_336,
    num_kv_heads=8,
    max_length=32_768,
    rope_theta=1_000_000.0,
    norm_epsilon=1e-5,
    num_experts=8,
    experts_per_token=2,
    expert_width=14_336,
  )


def gemma3(
  width: int, num_heads: int, num_layers: int, mlp_width: int, **changes
):
  """Returns a Gemma 3 shape (2503.19786): five layers of six have a window."""
  values = dict(
    vocab_size=262_144,
    rope_theta=1_000_000.0,
    window_rope_theta=10_000.0,
    embedding_scale=width**0.5,
    qk_norm=True,
    output_norms=True,
    activation='gelu_tanh',
    tied_embeddings=True,
  )
  return llama(width, num_heads, num_layers, mlp_width, **(values | changes))


def gemma3_27b() -> TransformerConfig:
  """Returns the text model of Gemma 3 27B."""
  return gemma3(
    width=5376,
    num_heads=32,
    num_layers=62,
    mlp_width=21_504,
    vocab_size=262_208,
    num_kv_heads=16,
    head_dim=128,
    max_length=131_072,
    rope_scaling=RopeScaling('linear', 8.0),
    windows=(1024,) * 5 + (0,),
    query_scale=168**-0.5,
  )


def gemma3_1b() -> TransformerConfig:
  """Returns Gemma 3 1B."""
  return gemma3(
    width=1152,
    num_heads=4,
    num_layers=26,
    mlp_width=6912,
    num_kv_heads=1,
    head_dim=256,
    max_length=32_768,
    windows=(512,) * 5 + (0,),
  )


def opt(width: int, num_heads: int, num_layers: int, **changes):
  """Returns an OPT shape (Zhang et al. 2205.01068) with norms before blocks."""
  values = dict(
    vocab_size=50_272,
    norm='layer',
    positions='learned',
    gated=False,
    activation='relu',
    biases='all',
    tied_embeddings=True,
    norm_epsilon=1e-5,
  )
  return _shape(width, num_heads, num_layers, **(values | changes))


def opt_125m() -> TransformerConfig:
  return opt(width=768, num_heads=12, num_layers=12)


def opt_13b() -> TransformerConfig:
  return opt(width=5120, num_heads=40, num_layers=40)


def opt_30b() -> TransformerConfig:
  return opt(width=7168, num_heads=56, num_layers=48)


def gpt2(width: int, num_heads: int, num_layers: int, **changes):
  """Returns a GPT-2 shape (Radford et al. 2019): OPT's with a tanh GELU."""
  values = dict(vocab_size=50_257, max_length=1024, activation='gelu_tanh')
  return opt(width, num_heads, num_layers, **(values | changes))
