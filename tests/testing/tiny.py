"""Models so small that the distributions of completions can be enumerated."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specsamp import LanguageModel, file_order
from specsamp.data.tokenizers import Meaning
from specsamp.drafting.dspark import DSparkLayers
from specsamp.drafting.eagle import PublishedEagleLayer
from specsamp.drafting.eagle3 import Eagle3Layer, PEagleLayers
from specsamp.drafting.features import DraftModule
from specsamp.drafting.medusa import MedusaHeads
from specsamp.drafting.trained import make
from specsamp.models import Transformer, TransformerConfig, param_shapes
from specsamp.training import draft_vocab


@dataclasses.dataclass(frozen=True)
class Letters:
  """A tokenizer whose tokens are the first letters of the alphabet.

  Attributes:
    vocab_size: number of letters.
    language: tokenizers of two languages differ.
    names: pieces in place of those of the language, or ().
  """

  vocab_size: int
  language: str = 'first'
  bos_id: int = -1
  eos_id: int = -1
  names: tuple[str, ...] = ()

  def encode(self, text: str) -> list[int]:
    return [ord(letter) - ord('a') for letter in text]

  def pieces(self) -> list[str]:
    pieces = [f'{self.language} {i}' for i in range(self.vocab_size)]
    return list(self.names) or pieces

  def meanings(self) -> list[Meaning]:
    role = lambda i: 'stop' if i in self.stop_ids else 'text'
    return [
      Meaning(piece.encode(), role(i)) for i, piece in enumerate(self.pieces())
    ]

  @property
  def stop_ids(self) -> tuple[int, ...]:
    return (self.eos_id,) if self.eos_id >= 0 else ()

  def decode(self, tokens, after=()) -> str:
    return ''.join(chr(ord('a') + token) for token in tokens)


def model(
  vocab_size: int, seed: int, max_length: int = 64, **config
) -> LanguageModel:
  """Returns a random model, whose distributions depend much on the seed."""
  values = dict(
    width=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_width=16,
  )
  values.update(config)
  transformer = Transformer(
    TransformerConfig(vocab_size=vocab_size, max_length=max_length, **values)
  )
  params = noise(transformer, seed)
  return LanguageModel(transformer, params, Letters(vocab_size))


def noise(module, seed: int):
  """Draws parameters of a module."""
  rng = np.random.default_rng(seed)

  def leaf(path, shape):
    # The branches of a fresh model add so little that a distribution depends
    # on the last token alone. Then no test would see a stale cache entry.
    noise = rng.standard_normal(shape.shape, np.float32)
    match path[-1].key:
      case 'embedding' | 'mask_embedding' | 'mask_feature':
        return noise
      case 'scale':
        return 1 + np.float32(0.4) * noise
      case _:
        return np.float32(0.45) * noise

  # On the host, because compiling the initialization takes longer than most
  # tests. Seeds of many tests depend on the order, which is that of files.
  shapes = file_order.shapes(param_shapes(module))
  params = jax.tree_util.tree_map_with_path(leaf, shapes)
  return jax.tree.map(jnp.asarray, file_order.from_files(params))


def draft(vocab_size: int, seed: int, max_length: int = 64) -> LanguageModel:
  """Returns a random model with one layer."""
  return model(vocab_size, seed, max_length, num_layers=1)


def foreign_draft(target: LanguageModel, num_missing: int = 1) -> LanguageModel:
  """Returns a draft whose tokenizer has the target's tokens in another order.

  It is the target's first layer. It lacks some of the target's tokens, before
  the last, and has two others, one of which ends like a token that it lacks.
  """
  layer = first_layer(target)
  count = target.config.num_tokens
  missing = range(count - 1 - num_missing, count - 1)
  kept = [i for i in reversed(range(count)) if i not in missing]
  pieces = target.tokenizer.pieces()
  names = ('other', *(pieces[i] for i in kept), pieces[missing[0]][-1:])
  rows = np.asarray([missing[0], *kept, missing[-1]])
  config = dataclasses.replace(layer.config, vocab_size=len(names))
  params = {
    name: value[rows] if name in ('embedding', 'head') else value
    for name, value in layer.params.items()
  }
  tokenizer = Letters(len(names), names=names)
  return LanguageModel(Transformer(config), params, tokenizer)


def first_layer(target: LanguageModel) -> LanguageModel:
  """Returns the first layer of a target, a draft that sometimes agrees."""
  config = dataclasses.replace(target.config, num_layers=1)
  transformer = Transformer(config)
  shapes = param_shapes(transformer)
  params = {name: target.params[name] for name in shapes}
  return LanguageModel(transformer, params, target.tokenizer)


def layers(kind: str) -> int:
  """Returns the smallest number of target layers for a kind of drafter."""
  return 6 if kind == 'eagle3' else 1


def trained(
  target: LanguageModel,
  kind: str,
  ahead: int = 4,
  seed: int = 2,
  num_layers: int = 1,
  **fields,
) -> DraftModule:
  """Returns a drafter for a target, with random parameters."""
  module = make(kind, target.config, ahead, num_layers, **fields)
  params = noise(module, seed)
  if 'draft_rows' in params:
    params['draft_rows'] = _draft_rows(module)
  return DraftModule(module, params, target.fingerprint)


def _draft_rows(module):
  """Maps the last token and the first ones; the others cannot be drafted."""
  size = module.config.vocab_size
  tokens = np.r_[: module.draft_vocab - 1, size - 1]
  return jnp.asarray(draft_vocab.rows_of(tokens, size))


def published(
  target: LanguageModel, kind: str, ahead: int = 4, seed: int = 5
) -> DraftModule:
  """Returns a random drafter in a form that its authors publish.

  It does not name its target. EAGLE-3 cannot draft the last token but one.
  """
  config = target.config
  layer = dataclasses.replace(config, num_layers=1)
  match kind:
    case 'medusa':
      module = MedusaHeads(config, ahead, num_blocks=2, has_lm_heads=True)
    case 'eagle':
      module = PublishedEagleLayer(layer)
    case 'eagle3':
      module = Eagle3Layer(layer, config.vocab_size - 1)
    case 'peagle':
      layers = dataclasses.replace(config, num_layers=2)
      module = PEagleLayers(layers, config.vocab_size - 1, mask_token=1)
    case 'dspark':
      layers = dataclasses.replace(
        config, num_layers=2, qk_norm=True, windows=(ahead, 0)
      )
      taps = (0, config.num_layers)
      module = DSparkLayers(
        layers, ahead, taps, mask_token=1, drafts_at_root=True, rank=3
      )
  params = noise(module, seed)
  if 'draft_rows' in params:
    params['draft_rows'] = _draft_rows(module)
  return DraftModule(module, params, target='')
