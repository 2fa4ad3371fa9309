"""Checks of the keys and values of a model's or a drafter's config.json.

A key that is ignored may change the computed function: a model then emits other
tokens, and a drafter is accepted less often. So every key must be known.
"""

from collections.abc import Iterable
from typing import Any

from specsamp.errors import UserError

# Keys that do not change the computation: names, versions and dtypes; tokens,
# and options of generation; options of transformers' classes, and labels;
# training.
_NEUTRAL = """
_name_or_path name_or_path base_model_name_or_path architectures auto_map
model_type target_model_type tokenizer_class _commit_hash torch_dtype dtype
transformers_version speculators_version unsloth_version _torchspec_version
specsamp_acceptance
speculators_config num_target_layers target_num_hidden_layers bos_token_id
eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id
max_length min_length do_sample early_stopping num_beams num_beam_groups
num_return_sequences diversity_penalty temperature top_k top_p typical_p
repetition_penalty length_penalty no_repeat_ngram_size
encoder_no_repeat_ngram_size bad_words_ids forced_bos_token_id
forced_eos_token_id remove_invalid_values exponential_decay_length_penalty
suppress_tokens begin_suppress_tokens prefix use_cache output_attentions
output_hidden_states output_scores return_dict return_dict_in_generate
torchscript use_bfloat16 tf_legacy_loss chunk_size_feed_forward pretraining_tp
attn_implementation _attn_implementation _attn_implementation_autoset
base_model_tp_plan base_model_pp_plan base_model_ep_plan has_no_defaults_at_init
is_decoder is_encoder_decoder cross_attention_hidden_size tie_encoder_decoder
id2label label2id num_labels _num_labels problem_type finetuning_task
task_specific_params
initializer_range init_std attention_dropout hidden_dropout dropout
activation_dropout layerdrop embd_pdrop attn_pdrop resid_pdrop
gradient_checkpointing unsloth_fixed _flash_attn_2_enabled output_past
embed_requires_grad enable_sp_ulysses max_anchors cache_implementation
transformers.js_config
"""
# Keys that `llama.read` reads, or that are checked here.
_LAYERS = """
vocab_size hidden_size num_hidden_layers num_attention_heads
num_key_value_heads head_dim intermediate_size hidden_act rms_norm_eps
max_position_embeddings max_sequence_length attention_bias mlp_bias
tie_word_embeddings rope_theta rope_scaling rope_parameters
partial_rotary_factor original_max_position_embeddings quantization_config
layer_types use_sliding_window sliding_window max_window_layers
"""


def check(
  values: dict[str, Any],
  known: Iterable[str] = (),
  fixed: dict[str, Any] | None = None,
) -> None:
  """Checks that all keys are known; null and empty values count as absent.

  `known` are keys that the caller reads; `fixed` has keys with one supported
  value.
  """
  fixed = {'add_cross_attention': False, 'use_mrope': False} | (fixed or {})
  names = {*_NEUTRAL.split(), *known}
  for key, value in values.items():
    if value in (None, '', [], {}) or key in names:
      continue
    if key not in fixed:
      raise UserError(
        f'got {key!r}: {value!r:.60}, an unknown key, which may change the '
        'computed function'
      )
    if value != fixed[key]:
      raise UserError(
        f'{key}: got {value!r:.60}, only {fixed[key]!r} is supported'
      )


def check_layers(
  values: dict[str, Any],
  known: Iterable[str] = (),
  fixed: dict[str, Any] | None = None,
) -> None:
  """Checks the keys of a config with layers; see `check`."""
  check(values, (*_LAYERS.split(), *known), fixed)


def refuse_windows(values: dict[str, Any]) -> None:
  """Refuses sliding windows, and keys that some programs read as windows."""
  names = ('layer_types', 'use_sliding_window', 'sliding_window')
  kinds, is_used, window = (values.get(name) for name in names)
  if kinds:
    slides = any(kind != 'full_attention' for kind in kinds)
  else:
    slides = is_used or (is_used is None and window is not None)
  if slides:
    raise UserError(
      f'{", ".join(names)}: got {kinds!r:.60}, {is_used!r} and {window!r}, '
      'expected a drafter without sliding windows'
    )


def layers(values: dict[str, Any]) -> dict[str, Any]:
  """Returns the part of a drafter's config that `llama.read` reads."""
  names = ('model_type', *_LAYERS.split())
  return {key: values[key] for key in names if key in values}


def nested(values: dict[str, Any], key: str) -> dict[str, Any]:
  """Returns the nested config of a key; raises KeyError if it is absent."""
  if not isinstance(values[key], dict):
    raise UserError(f'{key}: got {values[key]!r}, expected an object')
  return values[key]


def count(values: dict[str, Any], key: str, minimum: int = 1) -> int:
  """Returns the integer of a key; raises KeyError if it is absent."""
  if type(values[key]) is not int or values[key] < minimum:
    raise UserError(f'{key}: got {values[key]!r}, expected at least {minimum}')
  return values[key]


def token(values: dict[str, Any], key: str, vocab_size: int) -> int:
  """Returns the token id of a key; see `count`."""
  value = count(values, key, 0)
  if value >= vocab_size:
    raise UserError(
      f'{key}: got {value}, expected below the vocab_size {vocab_size}'
    )
  return value


def flag(values: dict[str, Any], key: str, default: bool = False) -> bool:
  """Returns the truth value of a key, or the default if absent or null."""
  value = default if values.get(key) is None else values[key]
  if type(value) is not bool:
    raise UserError(f'{key}: got {value!r}, expected true or false')
  return value


def layer_ids(key: str, ids: Any, minimum: int) -> list[int]:
  """Returns the layer ids of a key, which must ascend.

  A first id below `minimum` is refused: it may mean an input or an output.
  """
  is_list = type(ids) is list and {type(id_) for id_ in ids} == {int}
  if not is_list or sorted(set(ids)) != ids:
    raise UserError(f'{key}: got {ids!r}, expected layers, ascending')
  if ids[0] < minimum:
    raise UserError(
      f'{key}: got {ids}, which may mean inputs or outputs of these layers; '
      f'expected a first one of at least {minimum}'
    )
  return ids
