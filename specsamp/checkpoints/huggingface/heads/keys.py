"""Checks that all keys of a drafter's config.json are understood.

A key that is dropped may change what a drafter computes. Nothing shows the
change but the drafts: fewer are accepted, and the completions stay right.
"""

from collections.abc import Iterable
from typing import Any

from specsamp.errors import UserError

_LONGEST = 60  # characters of a value in a message

# Keys that do not change what a drafter computes: names, versions and dtypes;
# tokens, and how texts are generated; how transformers' classes run, and their
# labels; training.
_NEUTRAL = """
_name_or_path name_or_path base_model_name_or_path architectures auto_map
model_type target_model_type tokenizer_class _commit_hash torch_dtype dtype
transformers_version speculators_version unsloth_version _torchspec_version
speculators_config num_target_layers target_num_hidden_layers

bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id
decoder_start_token_id max_length min_length do_sample early_stopping num_beams
num_beam_groups num_return_sequences diversity_penalty temperature top_k top_p
typical_p repetition_penalty length_penalty no_repeat_ngram_size
encoder_no_repeat_ngram_size bad_words_ids forced_bos_token_id
forced_eos_token_id remove_invalid_values exponential_decay_length_penalty
suppress_tokens begin_suppress_tokens prefix

use_cache output_attentions output_hidden_states output_scores return_dict
return_dict_in_generate torchscript use_bfloat16 tf_legacy_loss
chunk_size_feed_forward pretraining_tp attn_implementation
_attn_implementation _attn_implementation_autoset base_model_tp_plan
base_model_pp_plan base_model_ep_plan has_no_defaults_at_init is_decoder
is_encoder_decoder cross_attention_hidden_size
tie_encoder_decoder id2label label2id num_labels problem_type
finetuning_task task_specific_params

initializer_range init_std attention_dropout hidden_dropout dropout
gradient_checkpointing unsloth_fixed _flash_attn_2_enabled output_past
embed_requires_grad enable_sp_ulysses max_anchors
"""
# Keys that `llama.read` takes, or that are checked here.
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
  read: Iterable[str] = (),
  fixed: dict[str, Any] | None = None,
) -> None:
  """Refuses keys that are not understood; null and empty values are absent.

  Args:
    values: of a config.json, or of a part of it.
    read: keys that the caller reads.
    fixed: key -> the only value of it that is computed here.

  Raises:
    UserError: names the first such key and its value.
  """
  fixed = {'add_cross_attention': False} | (fixed or {})
  known = {*_NEUTRAL.split(), *read}
  for key, value in values.items():
    if value in (None, '', [], {}) or key in known:
      continue
    if key not in fixed:
      raise UserError(
        f'got {key!r}: {_short(value)}, a key that is not understood and that '
        'may change what the drafter computes'
      )
    if value != fixed[key]:
      raise UserError(
        f'{key}: got {_short(value)}, only {fixed[key]!r} is supported'
      )


def check_layers(
  values: dict[str, Any],
  read: Iterable[str] = (),
  fixed: dict[str, Any] | None = None,
) -> None:
  """Refuses what `check` does, and sliding windows; `values` have layers."""
  _check_windows(values)
  check(values, (*_LAYERS.split(), *read), fixed)


def _check_windows(values: dict[str, Any]) -> None:
  """Refuses layers that may attend to a window, by any program's reading."""
  kinds = values.get('layer_types')
  if kinds:
    if not isinstance(kinds, list) or any(
      kind != 'full_attention' for kind in kinds
    ):
      raise UserError(
        f"layer_types: got {_short(kinds)}, only 'full_attention' is supported "
        'for drafters'
      )
    return  # without a layer that slides the other keys say nothing
  if values.get('use_sliding_window') is False:
    return
  for key in ('use_sliding_window', 'sliding_window'):
    if values.get(key) is not None:
      raise UserError(
        f'{key}: got {_short(values[key])}, expected a drafter without sliding '
        "windows: layer_types that are all 'full_attention', or none of these "
        'keys'
      )


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= _LONGEST else f'{text[:_LONGEST]}..'
