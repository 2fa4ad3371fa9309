"""Training a drafter on the features of a target that stays as it is."""

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import Mesh

from specsamp import zoo
from specsamp.checkpoints import drafter_dir, dtypes, model_dir, weights
from specsamp.data import corpora, packing
from specsamp.drafting import trained as kinds
from specsamp.drafting.features import DraftModule, TargetHead
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import TransformerConfig, float16
from specsamp.sharding import devices
from specsamp.sharding import mesh as meshes
from specsamp.training import draft_vocab, feature_cache, run
from specsamp.training.continuations import continuations
from specsamp.training.distill_config import DistillConfig
from specsamp.training.feature_cache import FeatureCache, Sequences
from specsamp.training.objectives import OBJECTIVES
from specsamp.training.objectives.batch import Batch
from specsamp.utils import files, locks

# Of a module: with other ones the same parameters compute something else.
_MEANINGS = (
  'taps',
  'adds_to_normed',
  'feeds_normed',
  'has_lm_head',
  'mask_token',
)
# What of a layer is added to the stream: without it a layer is the identity.
_WRITES = ('o', 'o_bias', 'down', 'down_bias')
_ROWS = 'draft_rows'


class Frozen(NamedTuple):
  """What is no more trained in a run.

  Attributes:
    target: its parameters.
    chosen: parameters of the drafter, those that no gradient has.
  """

  target: Any
  chosen: dict[str, jax.Array]


def make_loss(config: DistillConfig, module, target: LanguageModel):
  """(params, `Frozen`, batch) -> loss, metrics.

  A batch has tokens [B, T + 1], a seed [B], the noise [B] on the features, and
  may have what `feature_cache.read` makes of the tokens. Nothing of the target
  is differentiated.
  """
  transformer = target.transformer.clone(taps=kinds.taps(module))
  objective = OBJECTIVES[config.kind]

  def loss(params, frozen, batch):
    target_params = jax.lax.stop_gradient(frozen.target)
    tokens = batch['tokens']
    inputs = tokens[:, :-1]
    keys_b = jax.vmap(jax.random.key)(batch['seed'])
    starts_bm = jax.vmap(lambda key: _starts(key, config, inputs.shape[1]))(
      keys_b
    )
    given = Batch(tokens, starts_bm)
    if objective.reads_features(config.weights):
      if 'features' in batch:
        read = batch['features'].astype(transformer.config.dtype)
      else:
        read = feature_cache.read(transformer, target_params, inputs)
      features, hidden = feature_cache.apart(read, transformer.config.width)
      noise = _noise(keys_b, batch['noise'], features)
      given = given._replace(features=features, noise=noise, hidden=hidden)
    return objective.loss(
      module,
      params | frozen.chosen,
      TargetHead.of(transformer, target_params),
      given,
      config.weights,
    )

  return loss


def _noise(keys_b, most_b, features_btd):
  """Uniform noise of at most `most`, of the features' shape and type."""
  shape = features_btd.shape[1:]
  uniform = lambda key: jax.random.uniform(
    jax.random.fold_in(key, 1), shape, minval=-1
  )
  noise = jax.vmap(lambda key, most: uniform(key) * most)(keys_b, most_b)
  return noise.astype(features_btd.dtype)


def _starts(key, config: DistillConfig, length: int):
  """Positions whose heads or masks are trained: int [M], drawn unless all."""
  starts_t = jnp.arange(config.first_group, length, dtype=jnp.int32)
  if not config.groups and config.retention == 1:
    return starts_t
  # The first of them have the farthest masks and steps.
  return jax.random.permutation(key, starts_t)[: config.groups or None]


@dataclasses.dataclass(frozen=True)
class Batches(Sequences):
  """With all else that a step of training reads: `seed` and `noise`, [B].

  Attributes:
    noise: on the features of training batches.
  """

  noise: float

  def batch(self, step: int) -> dict[str, np.ndarray]:
    return self._drawn(super().batch(step), step, self.noise)

  def in_order(self, num_batches: int) -> Iterable[dict[str, np.ndarray]]:
    for i, batch in enumerate(super().in_order(num_batches)):
      yield self._drawn(batch, i, 0.0)

  def _drawn(self, batch, step: int, noise: float) -> dict[str, np.ndarray]:
    size = len(batch['tokens'])
    return batch | {
      'seed': np.arange(step * size, (step + 1) * size, dtype=np.uint32),
      'noise': np.full(size, noise, np.float32),
    }


def distill(
  config: DistillConfig, workdir, mesh: Mesh | None = None
) -> DraftModule:
  """Trains a drafter, or goes on where a run in this workdir was cut off.

  Adds to what `run.fit` writes into the workdir: what the target wrote, unless
  the config names another folder; which tokens are drafted, where that is
  chosen (`draft_vocab.FILE`); and when done drafter/ (a folder for
  `drafter_dir.load`). Returns the drafter in float32.

  Args:
    config: what fixes the run.
    workdir: a folder that all processes see.
    mesh: where to train; None is one device.

  Raises:
    UserError: the target or corpus does not fit the config, the config not
      the mesh, or the last checkpoint cannot be read.
    FloatingPointError: loss or gradient is no longer finite.
  """
  workdir = pathlib.Path(workdir).absolute()
  files.check_replaceable(workdir / 'drafter', weights.is_ours)
  target = _target(config, mesh)
  if config.length > target.config.max_length:
    raise UserError(
      f'length {config.length} exceeds the {target.config.max_length} '
      'positions of the target'
    )
  if config.num_continuations and config.length == target.config.max_length:
    raise UserError(
      f'length {config.length}: the target has no position for the label of '
      'the last token that it would write; expected a shorter one'
    )
  feature_cache.check(config.features)
  module = module_for(config, target.config)
  chosen = {}

  def data():
    nonlocal chosen  # of the text
    train, held_out = _data(config, module, target, workdir)
    chosen = _chosen(config, module, train.rows.tokens, workdir, mesh)
    return train, held_out, Frozen(target.params, chosen)

  with locks.lock_shared(_shared_folders(config, workdir), workdir):
    params = run.fit(
      config,
      workdir,
      mesh,
      init=_init(config, module, target),
      loss=make_loss(config, module, target),
      data=data,
    )
  trained = DraftModule(module, params | chosen, target.fingerprint)
  drafter_dir.save(trained, workdir / 'drafter', config.storage)
  return trained


def module_for(config: DistillConfig, target: TransformerConfig):
  """The module that a run trains for a target of this shape.

  Raises:
    UserError: the target does not fit the config.
  """
  fields = {'draft_vocab': config.draft_vocab} if config.draft_vocab else {}
  return kinds.make(
    config.kind, target, config.ahead, config.num_layers, **fields
  )


def _target(config, mesh: Mesh | None) -> LanguageModel:
  if not config.target:
    return zoo.load('pycode').target.on(mesh)
  # Gradients vanish in float16, which `load` takes where there is no bfloat16.
  trains = devices.has_bfloat16(dtypes.device_of(mesh))
  target = model_dir.load(config.target, mesh, None if trains else 'float32')
  if target.config.dtype == float16.NAME:
    raise UserError(
      f'target {config.target}: got float16, expected float32 or bfloat16: '
      'gradients vanish in it'
    )
  return target


def _continuations_folder(config, workdir: pathlib.Path) -> pathlib.Path:
  return pathlib.Path(config.continuations or workdir / 'continuations')


def _shared_folders(config, workdir: pathlib.Path) -> list:
  """What the run writes in and others may too, beside its workdir."""
  if not config.num_continuations:
    return [config.features]
  return [config.features, _continuations_folder(config, workdir)]


def _init(config: DistillConfig, module, target: LanguageModel):
  """(key) -> parameters to begin with.

  Raises:
    UserError: the drafter to begin with is another target's, of another shape,
      or reads something else.
  """
  if not config.init:
    return lambda key: _trainable(module.init_params(key))
  given = drafter_dir.load(config.init)
  given.check(target)
  for name in _MEANINGS:
    own, got = (getattr(each, name, ()) for each in (module, given.module))
    if got not in (own, None):  # of taps None are those that ours have
      raise UserError(f'init {config.init}: {name}: got {got}, expected {own}')
  given = {
    # Loaded in the target's precision, trained in 32 bits.
    name: value.astype(jnp.float32)
    for name, value in traverse_util.flatten_dict(
      _trainable(given.params)
    ).items()
  }

  def init(key):
    params = traverse_util.flatten_dict(_trainable(module.init_params(key)))
    begun = {name[0] for name in given}
    params = {
      name: jnp.zeros_like(value)
      if name[0].startswith('layers_')
      and name[0] not in begun
      and name[-1] in _WRITES
      else value
      for name, value in params.items()
    }
    for name, value in given.items():
      if name not in params or params[name].shape != value.shape:
        raise UserError(
          f'init {config.init}: {".".join(name)} is no parameter of '
          f'{config.kind} of this shape'
        )
    return traverse_util.unflatten_dict(params | given)

  return init


def _trainable(params):
  """A drafter's parameters without those that are chosen."""
  return {name: params[name] for name in params if name != _ROWS}


def _chosen(
  config: DistillConfig, module, rows: np.ndarray, workdir, mesh: Mesh | None
) -> dict[str, jax.Array]:
  """The parameters that are chosen and not trained, laid where others lie."""
  if 'draft_vocab' not in kinds.KINDS[config.kind].fields:
    return {}
  if config.init:
    draft_rows = drafter_dir.load(config.init).params[_ROWS]
  else:
    draft_rows = draft_vocab.chosen(
      workdir,
      rows[:, config.first_group + 1 :],  # of what the target wrote
      module.config.vocab_size,
      module.draft_vocab,
    )
  chosen = {_ROWS: np.asarray(draft_rows)}
  if mesh is None:
    return jax.tree.map(jnp.asarray, chosen)
  return meshes.shard(chosen, mesh)


def _data(
  config: DistillConfig, module, target: LanguageModel, workdir: pathlib.Path
) -> tuple[Batches, Batches]:
  files = corpora.split(corpora.read(config.corpus, config.pattern))
  made = []
  for seed, name in enumerate(('train', 'held_out')):
    tokens = packing.tokenize(files[seed].values(), target.tokenizer)
    if config.num_continuations:
      folder = _continuations_folder(config, workdir)
      tokens = _written(config, target, tokens, folder, seed, name)
    else:
      tokens = packing.windows(tokens, config.length)
    rows = packing.Rows(tokens, config.batch_size, config.seed)
    features = None
    reads = OBJECTIVES[config.kind].reads_features(config.weights)
    if config.features and reads:
      taps = kinds.taps(module)
      where = '_'.join([name, *map(str, taps)])
      features = FeatureCache(
        pathlib.Path(config.features) / where, target, tokens, taps
      )
    made.append(Batches(rows, features, config.noise))
  return tuple(made)


def _written(
  config: DistillConfig,
  target: LanguageModel,
  tokens: np.ndarray,
  folder: pathlib.Path,
  seed: int,
  name: str,
) -> np.ndarray:
  """What the target makes of a text, the temperatures by turns: [N, T + 1]."""
  count = config.num_continuations // len(config.temperatures)
  if name == 'held_out':  # a validation needs few, but a batch
    few = max(count // 64, config.batch_size)
    least = config.continuation_batch
    count = -(-few // least) * least
  rows = [
    continuations(
      target,
      tokens,
      folder / f't{temperature:g}' / name,
      count=count,
      prompt_length=config.prompt_length,
      length=config.length + 1,
      temperature=temperature,
      batch_size=config.continuation_batch,
      seed=seed,
    )
    for temperature in config.temperatures
  ]
  return np.stack(rows, axis=1).reshape(-1, config.length + 1)
