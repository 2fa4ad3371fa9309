"""Training a drafter on the features of a target that stays as it is."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import Mesh

from specsamp import files, zoo
from specsamp.checkpoints import drafter_dir, model_dir, weights
from specsamp.data import corpora, packing
from specsamp.drafting import trained as kinds
from specsamp.drafting.features import DraftModule, TargetHead
from specsamp.errors import UserError, check_name, check_range, check_scalars
from specsamp.language_model import LanguageModel
from specsamp.models import TransformerConfig, float16
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import devices
from specsamp.sharding import mesh as meshes
from specsamp.training import draft_vocab, feature_cache, run
from specsamp.training.continuations import continuations
from specsamp.training.feature_cache import FeatureCache
from specsamp.training.objectives import OBJECTIVES, acceptance
from specsamp.training.objectives.batch import Batch, Positions, Weights

# What of a layer is added to the stream: without it a layer is the identity.
_WRITES = ('o', 'o_bias', 'down', 'down_bias')
_ROWS = 'draft_rows'


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig(run.RunConfig):
  """What fixes a run: it ends with the same weights.

  Attributes:
    target: folder of the target; '' is the embedded pair's.
    kind: of the drafter, one of `drafting.trained.KINDS`.
    ahead: tokens that it drafts in a round: heads, or masks and one; EAGLE
      drafts as many as it is asked for, and so does EAGLE-3, which is trained
      to draft so many.
    draft_vocab: tokens that EAGLE-3 can draft, the most frequent ones of what
      it is trained on; 0 is all.
    num_layers: of EAGLE, EAGLE-3 or a parallel drafter. The papers have one;
      more pay for a parallel one, which makes a pass a round and not a pass a
      token, and whose masks see what those before them made of the layer below.
    init: folder of a drafter to begin with, EAGLE's layer for a parallel one;
      layers that it lacks begin as the identity, and what else it lacks at
      random. '' begins at random.
    corpus: a folder of text, or '' for the standard library of this Python.
    pattern: the corpus' files, a glob relative to its folder.
    num_continuations: how many sequences to train on that the target wrote
      (self-distillation); 0 trains on the text.
    prompt_length: tokens of text that each of them begins with.
    temperatures: at which the target writes, as many sequences at each; 0 is
      greedy. What a drafter has never seen it drafts badly: a text at
      temperature 1 is none that the target writes greedily.
    continuation_batch: sequences that it writes at once.
    continuations: folder for what it writes, for several runs to share, one
      after the other: t0/train, t0/held_out, t1/train, .. for temperatures 0
      and 1. '' is in the workdir.
    features: folder for the target's features, for several runs to share, one
      after the other; '' computes them in every step. Of a drafter that reads
      several layers they lie beside those of the others, and are as many times
      as large.
    groups: positions of a sequence whose heads, masks, blocks or steps are
      trained in a step, drawn anew each time; 0 is all of them. Of a sequence
      that the target wrote none in its prompt: the text behind those is not the
      target's.
    retention: how many of the positions that have mask or step j in a step
      have the next one too.
    loss: of the draft's distribution, see `acceptance.per_position`. As
      published text for Medusa, Hydra and Medusa's ParallelSpec, and kl for
      EAGLE and its ParallelSpec.
    eta: of lk_lambda: how soon it goes over from KL to TV as a position gets
      better; 3 is the usual one.
    position_weights: how the tokens of a draft weigh: by `decay`, or each as
      much as the expected length of a draft hangs on it (expected_length). For
      EAGLE, which learns a token ahead, that is its acceptance alone.
    decay: of a head's, mask's or step's weight with its distance; Medusa's, its
      ParallelSpec's and EAGLE-3's is 0.8, EAGLE's ParallelSpec has 1, DFlash
      exp(-1 / 4) for blocks of 8 and exp(-1 / 7) for blocks of 16.
    noise: largest of the uniform noise on features that a drafter reads
      (EAGLE's).
    cross_entropy_weight: of `loss` beside the regression (EAGLE's).
    storage: of the finished drafter's matrices, float32 or int8.
  """

  kind: str
  target: str = ''
  ahead: int = 5
  draft_vocab: int = 0
  num_layers: int = 1
  init: str = ''
  corpus: str = ''
  pattern: str = '**/*.py'
  num_continuations: int = 0
  prompt_length: int = 128
  temperatures: tuple[float, ...] = (0.0,)
  continuation_batch: int = 32
  continuations: str = ''
  features: str = ''
  groups: int = 0
  retention: float = 1.0
  loss: acceptance.Loss = 'kl'
  eta: float = 3.0
  position_weights: Positions = 'decay'
  decay: float = 0.8
  noise: float = 0.1
  cross_entropy_weight: float = 0.1
  storage: run.Storage = 'float32'

  def __post_init__(self):
    super().__post_init__()
    check_name('kind', self.kind, kinds.KINDS)
    check_name('storage', self.storage, get_args(run.Storage))
    check_range(
      self, 'ahead', 'prompt_length', 'continuation_batch', least=1, kind=int
    )
    check_range(self, 'num_layers', least=1, most=64, kind=int)
    if self.num_layers > 1 and not kinds.KINDS[self.kind].has_layers:
      raise UserError(
        f'num_layers: {self.kind} has none, got {self.num_layers}'
      )
    if self.draft_vocab and 'draft_vocab' not in kinds.KINDS[self.kind].fields:
      raise UserError(
        f'draft_vocab: {self.kind} drafts all tokens, got {self.draft_vocab}'
      )
    self._check_temperatures()
    check_name('loss', self.loss, get_args(acceptance.Loss))
    check_name('position_weights', self.position_weights, get_args(Positions))
    check_range(
      self, 'num_continuations', 'groups', 'draft_vocab', least=0, kind=int
    )
    check_range(self, 'decay', 'noise', 'eta', 'cross_entropy_weight', least=0)
    check_range(self, 'retention', least=0, most=1)
    if 0 < self.num_continuations < self.batch_size:
      raise UserError(
        f'num_continuations: got {self.num_continuations}, fewer than the '
        f'{self.batch_size} of a batch'
      )
    if self.num_continuations and self.prompt_length > self.length:
      raise UserError(
        f'prompt_length: got {self.prompt_length}, more than the length '
        f'{self.length} of a sequence'
      )
    if self.ahead > self.length:
      raise UserError(
        f'ahead: got {self.ahead}, more than the {self.length} tokens of a '
        'sequence'
      )
    if self.groups > self.length - self.first_group:
      raise UserError(
        f'groups: got {self.groups}, more than the '
        f'{self.length - self.first_group} positions of a sequence that are '
        'trained'
      )

  def _check_temperatures(self) -> None:
    check_scalars('temperatures', self.temperatures)
    # Plain values have lists for tuples, and whole numbers.
    temperatures = tuple(map(float, self.temperatures))
    object.__setattr__(self, 'temperatures', temperatures)
    for temperature in temperatures:
      SamplingParams(temperature=temperature).check()
    if len(set(temperatures)) < len(temperatures):
      raise UserError(f'temperatures: got one twice in {temperatures}')
    if self.num_continuations % len(temperatures):
      raise UserError(
        f'num_continuations: got {self.num_continuations}, expected as many '
        f'at each of {len(temperatures)} temperatures'
      )

  @property
  def weights(self) -> Weights:
    """What is lessened."""
    return Weights(
      decay=self.decay,
      retention=self.retention,
      cross_entropy=self.cross_entropy_weight,
      loss=self.loss,
      eta=self.eta,
      positions=self.position_weights,
      unroll=self.ahead,
    )

  @property
  def first_group(self) -> int:
    """The first position whose heads or masks are trained.

    Of what the target wrote that is the prompt's last token.
    """
    return self.prompt_length - 1 if self.num_continuations else 0


def from_dict(values: dict[str, Any]) -> DistillConfig:
  """The config of plain values; `UserError` on a bad key or value."""
  with run.reading_config():
    return DistillConfig(**values)


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
  if not config.groups:
    return starts_t
  return jax.random.permutation(key, starts_t)[: config.groups]


@dataclasses.dataclass(frozen=True)
class Batches:
  """Rows in batches, with all that a step of training reads.

  Attributes:
    rows: shuffled anew in each epoch.
    features: of the rows, or None.
    noise: on the features of training batches.
  """

  rows: packing.Rows
  features: FeatureCache | None
  noise: float

  def batch(self, step: int) -> dict[str, np.ndarray]:
    return self._make(self.rows.batch(step), step, self.noise)

  def in_order(self, num_batches: int) -> Iterable[dict[str, np.ndarray]]:
    for i, index_b in enumerate(self.rows.in_order(num_batches)):
      yield self._make(index_b, i, 0.0)

  def _make(self, index_b, step: int, noise: float) -> dict[str, np.ndarray]:
    size = len(index_b)
    batch = {
      'tokens': self.rows.tokens[index_b],
      'seed': np.arange(step * size, (step + 1) * size, dtype=np.uint32),
      'noise': np.full(size, noise, np.float32),
    }
    if self.features is not None:
      batch['features'] = self.features(index_b)
    return batch


def distill(
  config: DistillConfig, workdir, mesh: Mesh | None = None
) -> DraftModule:
  """Trains a drafter, or goes on where a run in this workdir was cut off.

  Adds to what `run.fit` writes into the workdir: what the target wrote, unless
  the config names another folder, and when done drafter/ (a folder for
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
  if config.features and jax.process_count() > 1:
    raise UserError('features: kept by one process only; leave it empty')
  module = module_for(config, target.config)
  chosen = {}

  def data():
    nonlocal chosen  # of the text
    train, held_out = _data(config, module, target, workdir)
    chosen = _chosen(config, module, train.rows.tokens, workdir, mesh)
    return train, held_out, Frozen(target.params, chosen)

  with contextlib.ExitStack() as held:
    for folder in _shared_folders(config, workdir):
      held.enter_context(files.lock(folder))
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
  print(run.told(workdir, workdir / 'drafter'))
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
  trains = devices.has_bfloat16(weights.device_of(mesh))
  target = model_dir.load(config.target, mesh, None if trains else 'float32')
  if target.config.dtype == float16.NAME:
    raise UserError(
      f'target {config.target}: got float16, expected float32 or bfloat16: '
      'gradients vanish in it'
    )
  return target


def _continuations_folder(config, workdir: pathlib.Path) -> pathlib.Path:
  return pathlib.Path(config.continuations or workdir / 'continuations')


def _shared_folders(config, workdir: pathlib.Path) -> list[str]:
  """What the run writes in and others may too, beside its workdir."""
  written = [config.features] if config.features else []
  if config.num_continuations:
    written.append(_continuations_folder(config, workdir))
  return sorted(
    set(map(os.path.realpath, written)) - {os.path.realpath(workdir)}
  )


def _init(config: DistillConfig, module, target: LanguageModel):
  """(key) -> parameters to begin with.

  Raises:
    UserError: the drafter to begin with is another target's, or of another
      shape.
  """
  if not config.init:
    return lambda key: _trainable(module.init_params(key))
  given = drafter_dir.load(config.init)
  given.check(target)
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
