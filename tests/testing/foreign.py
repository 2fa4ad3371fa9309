"""Small random checkpoints that transformers itself writes."""

import contextlib
import io
import pathlib

import numpy as np

VOCAB = 53
_ROPE = dict(rope_theta=500.0)
_LLAMA3 = dict(
  rope_type='llama3',
  factor=4.0,
  low_freq_factor=1.0,
  high_freq_factor=4.0,
  original_max_position_embeddings=32,
)
_YARN = dict(
  rope_type='yarn',
  factor=4.0,
  original_max_position_embeddings=16,
  beta_fast=2.0,
  beta_slow=0.05,
)
_LINEAR = dict(rope_type='linear', factor=4.0)
_GROUPED = dict(
  hidden_size=24,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  intermediate_size=40,
  max_position_embeddings=64,
)
_EXPERTS = dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20)
_BIASES = dict(attention_bias=True, mlp_bias=True)
_OPT = dict(
  hidden_size=24,
  word_embed_proj_dim=24,
  num_hidden_layers=2,
  num_attention_heads=4,
  ffn_dim=40,
  max_position_embeddings=64,
)
_GPT2 = dict(n_embd=24, n_layer=2, n_head=4, n_positions=64)

# Name -> (class of its config, values that differ from the defaults).
FAMILIES = {
  'llama': ('LlamaConfig', _GROUPED),
  'llama, tied, biases': (
    'LlamaConfig',
    _GROUPED | _BIASES | dict(tie_word_embeddings=True, head_dim=8),
  ),
  'llama 3': (
    'LlamaConfig',
    _GROUPED | dict(rope_parameters=_ROPE | _LLAMA3),
  ),
  'llama, linear': (
    'LlamaConfig',
    _GROUPED | dict(rope_parameters=_ROPE | _LINEAR),
  ),
  'llama, yarn': (
    'LlamaConfig',
    _GROUPED | dict(rope_parameters=_ROPE | _YARN, head_dim=12),
  ),
  'mistral': ('MistralConfig', _GROUPED | dict(sliding_window=5)),
  'mistral, full': ('MistralConfig', _GROUPED | dict(sliding_window=None)),
  'qwen2': ('Qwen2Config', _GROUPED | dict(tie_word_embeddings=True)),
  'qwen2, windows': (
    'Qwen2Config',
    _GROUPED
    | dict(use_sliding_window=True, sliding_window=4, max_window_layers=1),
  ),
  'qwen3': ('Qwen3Config', _GROUPED | dict(head_dim=10)),
  'qwen3, biases': ('Qwen3Config', _GROUPED | dict(attention_bias=True)),
  'qwen3, yarn': (
    'Qwen3Config',
    _GROUPED
    | dict(rope_parameters=_ROPE | _YARN | dict(truncate=False), head_dim=10),
  ),
  'ministral 3': (
    'Ministral3Config',
    _GROUPED
    | dict(
      head_dim=8,
      rope_parameters=_ROPE
      | _YARN
      | dict(mscale=1.0, mscale_all_dim=0.7, llama_4_scaling_beta=0.3),
    ),
  ),
  'mixtral': ('MixtralConfig', _GROUPED | dict(num_local_experts=5)),
  'mixtral, windows': (
    'MixtralConfig',
    _GROUPED
    | dict(num_local_experts=3, num_experts_per_tok=1, sliding_window=5),
  ),
  'qwen3 moe': (
    'Qwen3MoeConfig',
    _GROUPED | _EXPERTS | dict(norm_topk_prob=True, head_dim=10),
  ),
  'qwen3 moe, all scores, dense': (
    'Qwen3MoeConfig',
    _GROUPED
    | _EXPERTS
    | dict(num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3]),
  ),
  'phi 3': ('Phi3Config', _GROUPED),
  'phi 3, windows, part': (
    'Phi3Config',
    _GROUPED
    | dict(
      hidden_size=32,
      sliding_window=5,
      rope_parameters=_ROPE | dict(partial_rotary_factor=0.5),
    ),
  ),
  'glm 4': ('Glm4Config', _GROUPED | dict(head_dim=8, rope_parameters=_ROPE)),
  'glm 4, no biases': (
    'Glm4Config',
    _GROUPED
    | dict(
      head_dim=12,
      attention_bias=False,
      rope_parameters=_ROPE | dict(partial_rotary_factor=1.0),
    ),
  ),
  'gemma 2': (
    'Gemma2Config',
    _GROUPED
    | dict(
      head_dim=8,
      query_pre_attn_scalar=5,
      sliding_window=5,
      attn_logit_softcapping=2.0,
      final_logit_softcapping=3.0,
    ),
  ),
  'gemma 3': (
    'Gemma3TextConfig',
    _GROUPED
    | dict(
      head_dim=8,
      num_hidden_layers=3,
      sliding_window_pattern=3,
      sliding_window=5,
      query_pre_attn_scalar=5,
      attention_bias=True,
      rope_scaling=dict(rope_type='linear', factor=8.0),
    ),
  ),
  'opt': ('OPTConfig', _OPT),
  'opt, untied': ('OPTConfig', _OPT | dict(tie_word_embeddings=False)),
  'gpt2': ('GPT2Config', _GPT2),
  'gpt2, narrow': ('GPT2Config', _GPT2 | dict(n_inner=30)),
}


def config(name: str, **changes):
  """Returns a transformers config of one family, for tests marked `parity`."""
  import transformers

  kind, values = FAMILIES[name]
  values = values | changes
  if values.get('eos_token_id') is None:
    values |= dict(bos_token_id=0, eos_token_id=None)
  made = getattr(transformers, kind)(
    **(dict(vocab_size=VOCAB, pad_token_id=None) | values)
  )
  made.eos_token_id = values['eos_token_id']  # GLM-4's class replaces None
  return made


def model(name: str, seed: int = 0, **changes):
  """Returns a random model, far from its initial zeros and ones."""
  made = config(name, **changes)
  import torch
  import transformers

  torch.manual_seed(seed)
  # The default implementation of attention drops caps of scores.
  model = transformers.AutoModelForCausalLM.from_config(
    made, attn_implementation='eager'
  ).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      is_vector = parameter.ndim == 1
      value = 0.4 * torch.randn(parameter.shape) + 0.5 * is_vector
      if is_vector:  # of few bits, so that 1 + w of Gemma's norms is exact
        value = value.bfloat16()
      parameter.copy_(value)
  model.tie_weights()
  return model


def save(model, folder: pathlib.Path, pieces: int = VOCAB, **options) -> None:
  """Writes the model and a tokenizer of `pieces` words, without a bar."""
  with contextlib.redirect_stderr(io.StringIO()):
    model.save_pretrained(folder, **options)
  save_tokenizer(folder, pieces)


def save_tokenizer(folder: pathlib.Path, pieces: int) -> None:
  """Writes a tokenizer of the words w0, w1, .. without bos and eos."""
  import tokenizers

  words = {f'w{i}': i for i in range(pieces)}
  made = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(words, unk_token='w0')
  )
  made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  made.save(str(folder / 'tokenizer.json'))


def logits(model, tokens) -> np.ndarray:
  """Returns the logits of a batch of tokens [B, T]."""
  import torch

  with torch.no_grad():
    return model(torch.tensor(np.asarray(tokens))).logits.float().numpy()


def greedy(model, prompt: list[int], count: int) -> list[int]:
  """Returns the greedy continuation of a prompt by transformers."""
  import torch

  ids = torch.tensor([prompt])
  out = model.generate(
    ids,
    attention_mask=torch.ones_like(ids),
    do_sample=False,
    min_new_tokens=count,
    max_new_tokens=count,
    pad_token_id=0,
  )
  return out[0, len(prompt) :].tolist()
