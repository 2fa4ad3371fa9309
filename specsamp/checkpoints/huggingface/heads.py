"""Drafters in the formats of those who published them: Medusa, EAGLE, EAGLE-3.

Each is a folder with a config.json and safetensors. None tells which weights of
the target it was trained for; the names of the tensors are the authors'.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from specsamp.checkpoints import layouts, tensor_files, weights
from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.families.family import BUFFERS
from specsamp.checkpoints.layouts import Layout, Part, Source
from specsamp.checkpoints.tensor_files import Stored
from specsamp.drafting.eagle import PublishedEagleLayer
from specsamp.drafting.eagle3 import Eagle3Layer
from specsamp.drafting.features import DraftModule
from specsamp.drafting.medusa import MedusaHeads
from specsamp.errors import UserError, unknown
from specsamp.models import TransformerConfig

_MEDUSA_FILE = 'medusa_lm_head.safetensors'
_LLAMA = 'LlamaForCausalLM'
_EAGLE = (_LLAMA, 'LlamaForCausalLMEagle', 'EagleLlamaForCausalLM')
_EAGLE3 = ('LlamaForCausalLMEagle3', 'Eagle3LlamaForCausalLM')


def reader(values: Any) -> Callable[[pathlib.Path], DraftModule] | None:
  """What reads the folder of this config.json; None if it is no such folder.

  Medusa's (Cai et al. 2401.10774) counts heads, EAGLE's (Li et al. 2401.15077)
  and EAGLE-3's (2503.01840) are those of a LLaMA of one layer; EAGLE-3's has a
  vocabulary of its own.

  Raises:
    UserError: another architecture, more layers than one, or values under which
      something else is computed.
    KeyError: a value is missing.
  """
  if not isinstance(values, dict) or 'drafter' in values:
    return None
  if 'medusa_num_heads' in values:
    return functools.partial(
      _read_medusa,
      _count(values, 'medusa_num_heads'),
      _count(values, 'medusa_num_layers'),
    )
  if 'architectures' not in values:
    return None
  name, *others = values['architectures'] or ['none']
  if others or name not in _EAGLE + _EAGLE3:
    raise UserError(unknown('architecture', name, _EAGLE + _EAGLE3))
  config = llama.read(values | {'model_type': 'llama'})
  if config.num_layers != 1:
    raise UserError(
      f'num_hidden_layers: got {config.num_layers}, expected the 1 of a drafter'
    )
  if name == _LLAMA and 'draft_vocab_size' not in values or name in _EAGLE[1:]:
    return functools.partial(_read_eagle, config, values.get('bias', True))
  if values.get('eagle_config'):
    raise UserError(
      f'eagle_config: got {values["eagle_config"]!r}, only a head without one '
      'is supported'
    )
  draft_vocab = _count(values, 'draft_vocab_size')
  return functools.partial(_read_eagle3, config, draft_vocab)


def _count(values: dict[str, Any], key: str) -> int:
  if type(values[key]) is not int or values[key] < 1:
    raise UserError(f'{key}: got {values[key]!r}, expected at least 1')
  return values[key]


def _read_medusa(num_heads: int, num_blocks: int, path) -> DraftModule:
  """Blocks and an LM head of its own for every head."""
  if (path / _MEDUSA_FILE).exists():
    tensors = tensor_files.of_files([path / _MEDUSA_FILE])
  else:
    tensors = tensor_files.of_folder(path)
  tensors = {
    name.removeprefix('medusa_head.'): stored
    for name, stored in tensors.items()
  }
  first = tensors.get(f'0.{num_blocks}.weight')
  if first is None or len(first.shape) != 2:
    raise UserError(
      f'drafter {path}: 0.{num_blocks}.weight: got {first and first.shape}, '
      'expected the LM head of the first head, [vocabulary, width]'
    )
  rows, width = first.shape
  # Nothing else of the target's shape is in the folder, or read by heads.
  config = TransformerConfig(
    vocab_size=rows,
    width=width,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=2,
    mlp_width=1,
    max_length=1,
  )
  layout = {}
  for i in range(num_heads):
    for block in range(num_blocks):
      own = f'head_{i + 1}' + (f'_{block}' if block else '')
      theirs = f'{i}.{block}.linear'
      layout[f'{own}.fuse'] = _matrix(f'{theirs}.weight')
      layout[f'{own}.fuse_bias'] = _vector(f'{theirs}.bias')
    layout[f'lm_head_{i + 1}.head'] = _matrix(f'{i}.{num_blocks}.weight')
  module = MedusaHeads(config, num_heads, num_blocks, has_lm_heads=True)
  return _read(path, module, layout, tensors)


def _read_eagle(config: TransformerConfig, has_bias: bool, path) -> DraftModule:
  """A layer without a norm before attention."""
  tensors = _tensors(path)
  layout = llama.layer(config, 'layers_0.', 'layers.0.')
  del layout['layers_0.attention_norm.scale']
  # Theirs reads the embedding first, ours the feature.
  halves = ((0, config.width), (0, 0))
  layout['fuse'] = Source(
    'pdw', tuple(Part('fc.weight', 'w d', start) for start in halves)
  )
  given = {}
  if has_bias:
    layout['fuse_bias'] = _vector('fc.bias')
  else:
    given['fuse_bias'] = np.zeros(config.width, np.float32)
  # A copy of the target's, which is read instead.
  copy = tensors.pop('embed_tokens.weight', None)
  expected = (config.vocab_size, config.width)
  if copy and copy.shape != expected:
    raise UserError(
      f'drafter {path}: embed_tokens.weight: got {copy.shape}, expected '
      f'{expected}'
    )
  module = PublishedEagleLayer(config)
  return _read(path, module, layout, tensors, given)


def _read_eagle3(
  config: TransformerConfig, draft_vocab: int, path
) -> DraftModule:
  """A layer of two norms, what fuses three depths, and a small vocabulary."""
  tensors = _tensors(path)
  what = f'drafter {path}'
  rows_v = _draft_rows(what, tensors, config.vocab_size, draft_vocab)
  has_embedding = 'embed_tokens.weight' in tensors
  layout = llama.layer(config, 'layers_0.', 'midlayer.')
  layout |= {
    'layers_0.feature_norm.scale': _vector('midlayer.hidden_norm.weight'),
    'fuse': _matrix('fc.weight'),
    'final_norm.scale': _vector('norm.weight'),
    'lm_head.head': _matrix('lm_head.weight'),
  }
  if has_embedding:
    layout['embedding'] = Source('vd', (Part('embed_tokens.weight', 'v d'),))
  module = Eagle3Layer(config, draft_vocab, has_embedding)
  return _read(path, module, layout, tensors, {'draft_rows': rows_v})


def _draft_rows(
  what: str, tensors: dict[str, Stored], vocab: int, draft_vocab: int
) -> np.ndarray:
  """Int32 [V], each token's row in the draft's LM head, or one past the last.

  Takes the tables out of the tensors: `d2t`, what is to be added to each row
  for its token, and `t2d`, which tokens have one.
  """
  table, known = tensors.pop('d2t', None), tensors.pop('t2d', None)
  kind = table and (table.dtype, table.shape)
  if kind != ('I64', (draft_vocab,)):
    raise UserError(
      f'{what}: d2t: got {kind}, expected {("I64", (draft_vocab,))}'
    )
  rows_k = np.arange(draft_vocab)
  tokens_k = rows_k + table.read()
  if tokens_k.min() < 0 or tokens_k.max() >= vocab:
    raise UserError(
      f'{what}: d2t: got tokens from {tokens_k.min()} to {tokens_k.max()}, '
      f'expected 0 to {vocab - 1}'
    )
  has_row_v = np.zeros(vocab, bool)
  has_row_v[tokens_k] = True
  if has_row_v.sum() < draft_vocab:
    raise UserError(
      f'{what}: d2t: got {has_row_v.sum()} tokens for {draft_vocab} rows, '
      'expected as many'
    )
  if known and not np.array_equal(known.read(), has_row_v):
    raise UserError(f'{what}: t2d: got other tokens than those of d2t')
  rows_v = np.full(vocab, draft_vocab, np.int32)
  rows_v[tokens_k] = rows_k
  return rows_v


def _read(
  path,
  module: nn.Module,
  layout: Layout,
  tensors: dict[str, Stored],
  given: dict[str, np.ndarray] | None = None,
) -> DraftModule:
  """A module with its parameters, those of the layout and those given."""
  shapes = jax.eval_shape(module.init_params, jax.random.key(0))
  flat = weights.flat(shapes)
  sizes = {
    name: _size(source, flat[name].shape) for name, source in layout.items()
  }
  layouts.check(f'drafter {path}', layout, sizes, tensors)
  dtypes = weights.matmul_dtypes(flat, weights.default_dtype(tensors.values()))

  def read(name: str, index) -> np.ndarray:
    if name not in layout:
      return given[name]
    whole = layouts.read(tensors, layout[name], sizes[name])
    return whole.reshape(flat[name].shape).astype(dtypes[name])

  params = weights.tree(weights.place(shapes, None, None, read))
  return DraftModule(module, params, target='')


def _size(source: Source, shape: tuple[int, ...]) -> tuple[int, ...]:
  """A parameter's shape, the first axis cut into the parts stacked there."""
  if len(source.axes) == len(shape):
    return shape
  count = len(source.parts)
  return (count, shape[0] // count, *shape[1:])


def _tensors(path) -> dict[str, Stored]:
  return {
    name: stored
    for name, stored in tensor_files.of_folder(path).items()
    if not BUFFERS.search(name)
  }


def _matrix(key: str) -> Source:
  """A linear map, [outputs, inputs] there and the other way round here."""
  return Source('dw', (Part(key, 'w d'),))


def _vector(key: str) -> Source:
  return Source('d', (Part(key, 'd'),))
