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
_LINEAR = dict(rope_type='linear', factor=4.0)
_GROUPED = dict(
  hidden_size=24,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  intermediate_size=40,
  max_position_embeddings=64,
)
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
  'mistral': ('MistralConfig', _GROUPED | dict(sliding_window=40)),
  'qwen2': ('Qwen2Config', _GROUPED | dict(tie_word_embeddings=True)),
  'qwen3': ('Qwen3Config', _GROUPED | dict(head_dim=10)),
  'qwen3, biases': ('Qwen3Config', _GROUPED | dict(attention_bias=True)),
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
  return getattr(transformers, kind)(
    **(dict(vocab_size=VOCAB, pad_token_id=None) | values)
  )


def model(name: str, seed: int = 0, **changes):
  """Returns a random model, far from its initial zeros and ones."""
  made = config(name, **changes)
  import torch
  import transformers

  torch.manual_seed(seed)
  model = transformers.AutoModelForCausalLM.from_config(made).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      is_vector = parameter.ndim == 1
      parameter.copy_(0.4 * torch.randn(parameter.shape) + 0.5 * is_vector)
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
