"""Training of a drafter on the features of a target, which stays fixed."""

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

# Fields of a module that change the meaning of its parameters.
_MEANINGS = (
  'taps',
  'adds_to_normed',
  'feeds_normed',
  'has_lm_head',
  'mask_token',
)
# Parameters of a layer that write to the residual stream. If they are 0 the
# layer is the identity.
_WRITES = ('o', 'o_bias', 'down', 'down_bias')
_ROWS = 'draft_rows'


class Frozen(NamedTuple):
  """Arrays of a run without gradient.

  Attributes:
    target: parameters of the target.
    chosen: parameters of the drafter that are chosen and not trained.
  """

  target: Any
  chosen: dict[str, jax.Array]


def make_loss(config: DistillConfig, module, target: LanguageModel):
  """Returns the loss of a run: (params, `Frozen`, batch) -> loss, metrics.

  A batch has `tokens` [B, T + 1], `seed` [B] and `noise` [B], the largest noise
  on features. It may have `features`, the result of `feature_cache.compute`.
  The target has no gradient.
  """
  transformer = target.transformer.clone(taps=module.taps)
  objective = OBJECTIVES[config.kind]

  def loss(params, frozen, batch):
    target_params = jax.lax.stop_gradient(frozen.target)
    tokens = batch['tokens']
    inputs = tokens[:, :-1]
    keys_b = jax.vmap(jax.random.key)(batch['seed'])
    starts_bm = jax.vmap(lambda key: _starts(key, config, inputs.shape[1]))(
      keys_b
    )
    sequences = Batch(tokens, starts_bm)
    if objective.reads_features(config.weights):
      if 'features' in batch:
        read = batch['features'].astype(transformer.config.dtype)
      else:
        read = feature_cache.compute(transformer, target_params, inputs)
      features, hidden = feature_cache.split(read, transformer.config.width)
      noise = _noise(keys_b, batch['noise'], features)
      sequences = Batch(tokens, starts_bm, features, noise, hidden)
    return objective.loss(
      module,
      params | frozen.chosen,
      TargetHead.of(transformer, target_params),
      sequences,
      config.weights,
    )

  return loss


def _noise(keys_b, max_b, features_btd):
  """Returns uniform noise in [-max, max] of the features' shape and dtype."""

  def draw(key, max_noise):
    key = jax.random.fold_in(key, 1)
    shape = features_btd.shape[1:]
    return jax.random.uniform(key, shape, minval=-1) * max_noise

  return jax.vmap(draw)(keys_b, max_b).astype(features_btd.dtype)


def _starts(key, config: DistillConfig, length: int):
  """Returns the positions whose heads, masks or steps are trained: int [M]."""
  starts_t = jnp.arange(config.first_group, length, dtype=jnp.int32)
  if not config.groups and config.retention == 1:
    return starts_t
  # Shuffled, because the first of them have the most masks and steps.
  return jax.random.permutation(key, starts_t)[: config.groups or None]


@dataclasses.dataclass(frozen=True)
class Batches(Sequences):
  """Sequences with the seed and the noise of a training step.

  Attributes:
    noise: largest noise on the features of training batches.
  """

  noise: float

  def batch(self, step: int) -> dict[str, np.ndarray]:
    return self._with_seeds(super().batch(step), step, self.noise)

  def in_order(self, num_batches: int) -> Iterable[dict[str, np.ndarray]]:
    for i, batch in enumerate(super().in_order(num_batches)):
      yield self._with_seeds(batch, i, 0.0)

  def _with_seeds(self, batch, step: int, noise: float):
    size = len(batch['tokens'])
    return batch | {
      'seed': np.arange(step * size, (step + 1) * size, dtype=np.uint32),
      'noise': np.full(size, noise, np.float32),
    }


def distill(
  config: DistillConfig, workdir, mesh: Mesh | None = None
) -> DraftModule:
  """Trains a drafter, resuming a run of the workdir.

  Adds to the files of `run.fit`: the target's continuations, unless the config
  names another folder for them; `draft_vocab.FILE`, if the kind drafts a part
  of the tokens; and at the end drafter/, a folder for `drafter_dir.load`.

  Args:
    config: of the run, which it determines.
    workdir: a folder that all processes see.
    mesh: where to train; None is one device.

  Returns:
    The drafter in float32.

  Raises:
    UserError: the target or the corpus does not fit the config, or the config
      does not fit the mesh, or the last checkpoint cannot be read.
    FloatingPointError: a loss, a gradient or the state is not finite.
  """
  workdir = pathlib.Path(workdir).absolute()
  files.check_replaceable(workdir / 'drafter', weights.is_ours)
  target = _target(config, mesh)
  # The last token of a continuation needs a position: its label.
  max_length = target.config.max_length - bool(config.num_continuations)
  if config.length > max_length:
    raise UserError(
      f'length: got {config.length}, expected at most {max_length}: the target '
      f'has {target.config.max_length} positions'
    )
  feature_cache.check_processes(config.features)
  module = module_for(config, target.config)
  folder = pathlib.Path(config.continuations or workdir / 'continuations')
  shared = [config.features]
  if config.num_continuations:
    shared.append(folder)
  chosen = {}

  def data():
    nonlocal chosen  # depends on the text
    train, held_out = _data(config, module, target, folder)
    chosen = _chosen(config, module, train.rows.tokens, workdir, mesh)
    return train, held_out, Frozen(target.params, chosen)

  with locks.lock_shared(shared, workdir):
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
  """Returns the module that a run trains for a target of this shape.

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
  # Without bfloat16 `load` would choose float16, in which gradients vanish.
  has_bfloat16 = devices.has_bfloat16(dtypes.device_of(mesh))
  dtype = None if has_bfloat16 else 'float32'
  target = model_dir.load(config.target, mesh, dtype)
  if target.config.dtype == float16.NAME:
    raise UserError(
      f'target {config.target}: got float16, expected float32 or bfloat16, '
      'because gradients vanish in float16'
    )
  return target


def _init(config: DistillConfig, module, target: LanguageModel):
  """Returns (key) -> initial parameters.

  Raises:
    UserError: the drafter of `config.init` has another target, another shape or
      another meaning.
  """
  if not config.init:
    return lambda key: _trainable(module.init_params(key))
  start = drafter_dir.load(config.init)
  start.check(target)
  for name in _MEANINGS:
    got = getattr(start.module, name, ())
    expected = getattr(module, name, ())
    if got not in (expected, None):  # None: taps of the kind's default
      raise UserError(
        f'init {config.init}: {name}: got {got}, expected {expected}'
      )
  # It was loaded in the target's dtype, and is trained in 32 bits.
  start_params = {
    name: value.astype(jnp.float32)
    for name, value in traverse_util.flatten_dict(
      _trainable(start.params)
    ).items()
  }
  start_modules = {name[0] for name in start_params}

  def init(key):
    params = traverse_util.flatten_dict(_trainable(module.init_params(key)))
    for name, value in params.items():
      is_new_layer = (
        name[0].startswith('layers_') and name[0] not in start_modules
      )
      if is_new_layer and name[-1] in _WRITES:
        params[name] = jnp.zeros_like(value)
    for name, value in start_params.items():
      if name not in params or params[name].shape != value.shape:
        raise UserError(
          f'init {config.init}: {config.kind} has no parameter '
          f'{".".join(name)} of shape {value.shape}'
        )
    return traverse_util.unflatten_dict(params | start_params)

  return init


def _trainable(params):
  return {name: params[name] for name in params if name != _ROWS}


def _chosen(
  config: DistillConfig, module, rows: np.ndarray, workdir, mesh: Mesh | None
) -> dict[str, jax.Array]:
  """Returns the parameters that are chosen and not trained, on the devices."""
  if 'draft_vocab' not in kinds.KINDS[config.kind].fields:
    return {}
  if config.init:
    draft_rows = drafter_dir.load(config.init).params[_ROWS]
  else:
    draft_rows = draft_vocab.choose_rows(
      workdir,
      rows[:, config.first_group + 1 :],  # what the target wrote
      module.config.vocab_size,
      module.draft_vocab,
    )
  chosen = {_ROWS: np.asarray(draft_rows)}
  if mesh is None:
    return jax.tree.map(jnp.asarray, chosen)
  return meshes.shard(chosen, mesh)


def _data(
  config: DistillConfig, module, target: LanguageModel, folder: pathlib.Path
) -> tuple[Batches, Batches]:
  """Returns training and held-out data; `folder` has the continuations."""
  parts = corpora.split(corpora.read(config.corpus, config.pattern))
  reads_features = OBJECTIVES[config.kind].reads_features(config.weights)
  taps = module.taps
  data = []
  for seed, name in enumerate(('train', 'held_out')):
    tokens = packing.tokenize(parts[seed].values(), target.tokenizer)
    if config.num_continuations:
      tokens = _continuations(config, target, tokens, folder, seed, name)
    else:
      tokens = packing.windows(tokens, config.length)
    features = None
    if config.features and reads_features:
      part = '_'.join([name, *map(str, taps)])
      features = FeatureCache(
        pathlib.Path(config.features) / part, target, tokens, taps
      )
    rows = packing.Rows(tokens, config.batch_size, config.seed)
    data.append(Batches(rows, features, config.noise))
  return tuple(data)


def _continuations(
  config: DistillConfig,
  target: LanguageModel,
  tokens: np.ndarray,
  folder: pathlib.Path,
  seed: int,
  name: str,
) -> np.ndarray:
  """Returns continuations of a text, temperatures interleaved: [N, T + 1]."""
  batch_size = config.continuation_batch
  count = config.num_continuations // len(config.temperatures)
  if name == 'held_out':  # a validation needs few, but at least a batch
    count = max(count // 64, config.batch_size)
    count = -(-count // batch_size) * batch_size
  rows = [
    continuations(
      target,
      tokens,
      folder / f't{temperature:g}' / name,
      count=count,
      prompt_length=config.prompt_length,
      length=config.length + 1,
      temperature=temperature,
      batch_size=batch_size,
      seed=seed,
    )
    for temperature in config.temperatures
  ]
  return np.stack(rows, axis=1).reshape(-1, config.length + 1)
