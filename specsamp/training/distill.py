"""Training of a drafter on the features of a target, which stays fixed."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import Mesh

from specsamp import zoo
from specsamp.checkpoints import drafter_dir, model_dir, weights
from specsamp.data import conversations, corpora, packing
from specsamp.decoding import trial
from specsamp.drafting import trained as kinds
from specsamp.drafting.features import DraftModule, TargetHead
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import float16
from specsamp.sharding import mesh as meshes
from specsamp.training import draft_vocab, feature_cache, run
from specsamp.training.continuations import continuations
from specsamp.training.distill_config import DistillConfig
from specsamp.training.feature_cache import FeatureCache, Sequences
from specsamp.training.objectives import LOSSES
from specsamp.training.objectives.depths import Batch
from specsamp.utils import files, locks

# Fields of a module that change the meaning of its parameters.
_MEANINGS = (
  'taps', 'adds_to_normed', 'feeds_normed', 'has_lm_head', 'mask_token',
  'drafts_at_root', 'windows',
)  # fmt: skip
# Parameters of a layer that write to the residual stream. If they are 0 the
# layer is the identity.
_WRITES = ('o', 'o_bias', 'down', 'down_bias')
_ROWS = 'draft_rows'
_FUSING = ('eagle', 'eagle_parallel')  # features with embeddings as they are


def make_loss(config: DistillConfig, module, target: LanguageModel):
  """Returns the loss of a run: (params, frozen, batch) -> loss, metrics.

  `frozen` has the target's parameters and the drafter's untrained ones, such as
  `draft_rows`, without gradients. See `Sequences` for a batch.
  """
  transformer = target.transformer.clone(taps=module.taps)
  factors = _factors(config, target)

  def loss(params, frozen, batch):
    target_params, chosen = frozen
    target_params = jax.lax.stop_gradient(target_params)
    tokens = batch['tokens']
    inputs = tokens[:, :-1]
    keys_b = jax.vmap(jax.random.key)(batch['seed'])
    counts_bt = batch.get('counts')
    starts = functools.partial(_starts, config, inputs.shape[1])
    starts_bm = jax.vmap(starts)(keys_b, counts_bt)
    sequences = Batch(tokens, starts_bm, counts=counts_bt)
    if config.reads_features:
      if 'features' in batch:
        read = batch['features'].astype(transformer.config.dtype)
      else:
        read = feature_cache.compute(transformer, target_params, inputs)
      features, hidden = feature_cache.split(read, transformer.config.width)
      noise = _noise(keys_b, batch['noise'], features)
      sequences = sequences._replace(
        features=features, noise=noise, hidden=hidden
      )
    return LOSSES[config.kind](
      module,
      _times(params, factors) | chosen,
      kinds.head_for(module, chosen, transformer, target_params),
      sequences,
      config,
    )

  return loss


def _noise(keys_b, max_b, features_btd):
  """Returns uniform noise in [-max, max] of the features' shape and dtype."""

  def draw(key, max_noise):
    key = jax.random.fold_in(key, 1)
    shape = features_btd.shape[1:]
    return jax.random.uniform(key, shape, minval=-1) * max_noise

  return jax.vmap(draw)(keys_b, max_b).astype(features_btd.dtype)


def _starts(config: DistillConfig, length: int, key, counts_t):
  """Returns the positions whose heads, masks or steps are trained: int [M].

  Positions before a token that counts come first, if `counts_t` is not None.
  """
  starts_t = jnp.arange(config.first_group, length, dtype=jnp.int32)
  if not config.groups and config.retention == 1:
    return starts_t
  # Shuffled, because the first of them have the most masks and steps.
  starts_t = jax.random.permutation(key, starts_t)
  if counts_t is not None:
    starts_t = starts_t[jnp.argsort(~counts_t[starts_t])]
  return starts_t[: config.groups or None]


def distill(
  config: DistillConfig, workdir, mesh: Mesh | None = None
) -> DraftModule:
  """Trains a drafter, resuming a run of the workdir.

  In addition to the files of `run.fit` it writes the target's continuations
  (unless the config names a folder for them), `draft_vocab.FILE` if the kind
  drafts a part of the tokens, and at the end drafter/ for `drafter_dir.load`,
  with the drafter's acceptance in a trial.

  Args:
    config: settings of the run.
    workdir: a folder that all processes see.
    mesh: where to train; None is one device.

  Returns:
    The drafter in float32.

  Raises:
    UserError: see `run.fit`; or the target or the corpus does not fit the
      config.
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
  fields = {'draft_vocab': config.draft_vocab} if config.draft_vocab else {}
  module = kinds.make(
    config.kind, target.config, config.ahead, config.num_layers, **fields
  )
  folder = pathlib.Path(config.continuations or workdir / 'continuations')
  shared = [config.features]
  if config.num_continuations:
    shared.append(folder)
  chosen = {}

  def data():
    nonlocal chosen  # depends on the text
    train, held_out = _data(config, module, target, folder)
    print(_outline(config, train))
    chosen = _chosen(config, module, _labels(config, train), workdir, mesh)
    return train, held_out, (target.params, chosen)

  with locks.lock_shared(shared, workdir):
    params = run.fit(
      config,
      workdir,
      mesh,
      init=_init(config, module, target),
      loss=make_loss(config, module, target),
      data=data,
    )
  params = _times(params, _factors(config, target))
  trained = DraftModule(module, params | chosen, target.fingerprint)
  if tried := trial.run(trained, target):
    trained = dataclasses.replace(trained, acceptance=tried.acceptance)
  drafter_dir.save(trained, workdir / 'drafter', config.storage)
  return trained


def _target(config, mesh: Mesh | None) -> LanguageModel:
  if not config.target:
    return zoo.load('pycode').target.on(mesh)
  target = model_dir.load(config.target, mesh)
  if target.config.dtype == float16.NAME:  # in which gradients vanish
    target = model_dir.load(config.target, mesh, 'float32')
  return target


def _factors(config: DistillConfig, target: LanguageModel):
  """Returns {name: factor} from parameters in training to those of a drafter.

  EAGLE fuses features, which are normed, with embeddings, which are not. Those
  of SmolLM2 are a thirteenth as large, and a layer that sees so little of a
  token takes long to notice it. It is trained on larger embeddings.
  """
  if config.kind not in _FUSING:
    return {}
  c, head = target.config, TargetHead.of(target.transformer, target.params)
  tokens_1t = jnp.arange(0, c.num_tokens, -(-c.num_tokens // 4096))[None]
  rms = lambda x: jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32))))
  embedded, feature = jax.jit(
    lambda head, norm: (rms(head.embed(tokens_1t)), rms(norm))
  )(head, target.params['final_norm']['scale'])
  ratio = float(feature / embedded)
  fuse = np.ones((1, 2 * c.width), np.float32)
  fuse[:, c.width :] = ratio
  return {'fuse': fuse, 'mask_embedding': 1 / ratio}


def _times(params, factors):
  """Returns parameters times their factors, which are 1 without a name."""
  known = factors.keys() & params.keys()
  return params | {name: params[name] * factors[name] for name in known}


def _init(config: DistillConfig, module, target: LanguageModel):
  """Returns (key) -> initial parameters.

  Raises:
    UserError: the drafter of `config.init` has another target or shape, or its
      parameters have another meaning.
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
  # They have the target's dtype, and are trained in 32 bits.
  start_params = jax.tree.map(
    lambda x: x.astype(jnp.float32), _trainable(start.params)
  )
  factors = {n: 1 / factor for n, factor in _factors(config, target).items()}
  start_params = traverse_util.flatten_dict(_times(start_params, factors))
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


def _outline(config: DistillConfig, data: Sequences) -> str:
  """Returns a sentence on the size of a run."""
  rows, length = data.rows.tokens.shape[0], config.length
  epochs = config.steps * config.batch_size / rows
  text = f'{rows:,} sequences of {length} tokens'
  if data.counts is not None:
    text += f', {data.counts.mean():.0%} of them in answers'
  text += f'; {config.steps:,} steps of {config.batch_size} are {epochs:.1f} '
  text += 'epochs'
  if data.features is not None:
    text += f'; features: {data.features.num_bytes / 2**30:.2f} GiB'
  return text


def _labels(config: DistillConfig, data: Sequences) -> np.ndarray:
  """Returns the tokens that drafts are compared with."""
  labels_nt = data.rows.tokens[:, 1:]
  if data.counts is not None:
    return labels_nt[data.counts]
  return labels_nt[:, config.first_group :]


def _chosen(
  config: DistillConfig, module, labels: np.ndarray, workdir, mesh: Mesh | None
) -> dict[str, jax.Array]:
  """Returns the drafter's untrained parameters, on the devices."""
  if not getattr(module, 'draft_vocab', 0):
    return {}
  start = drafter_dir.load(config.init) if config.init else None
  if start and start.module.draft_vocab == module.draft_vocab:
    draft_rows = start.params[_ROWS]
  else:
    draft_rows = draft_vocab.choose_rows(
      workdir,
      labels,
      module.config.vocab_size,
      module.draft_vocab,
    )
  chosen = {_ROWS: np.asarray(draft_rows)}
  if mesh is None:
    return jax.tree.map(jnp.asarray, chosen)
  return meshes.shard(chosen, mesh)


def _data(
  config: DistillConfig, module, target: LanguageModel, folder: pathlib.Path
) -> tuple[Sequences, Sequences]:
  """Returns training and held-out data; `folder` has the continuations."""
  if config.conversations:
    rows = _conversations(config, target)
  else:
    rows = [(tokens, None) for tokens in _texts(config, target, folder)]
  data, taps = [], module.taps
  for name, (tokens, counts) in zip(('train', 'held_out'), rows, strict=True):
    features = None
    if config.features and config.reads_features:
      part = pathlib.Path(config.features, '_'.join([name, *map(str, taps)]))
      features = FeatureCache(part, target, tokens, taps)
    rows = packing.Rows(tokens, config.batch_size, config.seed)
    data.append(Sequences(rows, features, counts, config.noise))
  return tuple(data)


def _conversations(config: DistillConfig, target: LanguageModel):
  """Yields the rows of training and held-out answers, and what counts."""
  parts = conversations.split(conversations.read(config.conversations))
  for part in parts:
    text = conversations.encode(part, target.tokenizer)
    tokens = packing.windows(text.tokens, config.length)
    yield tokens, packing.windows(text.is_answer, config.length)[:, 1:]


def _texts(
  config: DistillConfig, target: LanguageModel, folder: pathlib.Path
) -> Iterator[np.ndarray]:
  """Yields the rows of training and held-out text or continuations."""
  parts = corpora.split(corpora.read(config.corpus, config.pattern))
  many = config.num_continuations // len(config.temperatures)
  # A validation needs few continuations, but at least a batch.
  few = max(many // 64, config.batch_size)
  few = -(-few // config.continuation_batch) * config.continuation_batch
  for seed, (name, count) in enumerate((('train', many), ('held_out', few))):
    tokens = packing.tokenize(parts[seed].values(), target.tokenizer)
    if config.num_continuations:
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
      # The temperatures are interleaved.
      yield np.stack(rows, axis=1).reshape(-1, config.length + 1)
    else:
      yield packing.windows(tokens, config.length)
