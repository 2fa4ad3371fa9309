"""Training of a language model on text, with or without a teacher."""

import dataclasses
import functools
import pathlib

import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from specsamp.checkpoints import model_dir, weights
from specsamp.data import corpora, packing, tokenizers
from specsamp.errors import UserError, check_range
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig, float16
from specsamp.training import continuations, feature_cache, run, run_config
from specsamp.training.feature_cache import FeatureCache, Sequences
from specsamp.training.objectives import acceptance
from specsamp.utils import distributed, files, locks


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(run_config.RunConfig):
  """Settings of a model's training; they and the files fix the weights.

  Attributes:
    model: shape of the model.
    corpus: folder of text; '' is the standard library of this Python.
    pattern: files of the corpus, a glob relative to its folder.
    repeats: times that an epoch reads each file of the corpus.
    extra_corpus: folder of text that an epoch reads once in addition; '' is
      unused. Its files match the same pattern. No file is held out; files that
      largely repeat a held-out file of the corpus are skipped.
    tokenizer: a SentencePiece model; '' trains one of `model.vocab_size` pieces
      on the corpus.
    init: folder of a model of this shape to start from, with its tokenizer; ''
      starts at random.
    teacher: folder of a model to distil from, with its tokenizer; '' trains on
      the text alone.
    continuations: folder of the teacher's continuations that
      `launch/distill.py` made, which replace the corpus (DistillSpec,
      2310.08461); each has `length` tokens and a label.
    features: folder that keeps the teacher's final hidden states of these
      continuations for later runs, those of launch/distill.py too; '' computes
      them in every step.
    distillation_weight: weight of KL(teacher || model) in the loss; the
      cross-entropy of the text has the rest.
    storage: dtype of the matrices of the finished model.
  """

  model: TransformerConfig
  corpus: str = ''
  pattern: str = '**/*.py'
  repeats: int = 1
  extra_corpus: str = ''
  tokenizer: str = ''
  init: str = ''
  teacher: str = ''
  continuations: str = ''
  features: str = ''
  distillation_weight: float = 0.5
  storage: run_config.Storage = 'float32'

  def __post_init__(self):
    super().__post_init__()
    if self.model.dtype == float16.NAME:
      raise UserError(
        f'model.dtype: got {self.model.dtype!r}, expected float32 or bfloat16: '
        'gradients vanish in it'
      )
    check_range(self, 'distillation_weight', min=0, max=1)
    check_range(self, 'repeats', min=1, kind=int)
    if self.continuations and not self.teacher:
      raise UserError(
        f'continuations: got {self.continuations} and no teacher, expected the '
        'model that wrote them'
      )
    if self.features and not self.continuations:
      raise UserError(
        f'features: got {self.features} and no continuations, expected the '
        'sequences that they are of'
      )
    if self.length > self.model.max_length:
      raise UserError(
        f'length {self.length} exceeds model.max_length {self.model.max_length}'
      )


def make_loss(
  transformer: Transformer,
  teacher: LanguageModel | None,
  distillation_weight: float,
):
  """Returns the loss: (params, teacher's params, batch) -> loss, metrics.

  A batch has `tokens` [B, T + 1]. It may have the teacher's final hidden states
  as `features` [B, T, D], which replace the teacher's pass.
  """

  def loss(params, teacher_params, batch):
    tokens = batch['tokens']
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    logits = transformer.apply({'params': params}, inputs).logits
    text_loss = optax.softmax_cross_entropy_with_integer_labels(
      logits, labels
    ).mean()
    if teacher is None:
      return text_loss, {'loss': text_loss}
    apply = functools.partial(
      teacher.transformer.apply, {'params': teacher_params}
    )
    if 'features' in batch:
      features = batch['features'].astype(teacher.config.dtype)
      teacher_logits = apply(features, method='logits')
    else:
      teacher_logits = apply(inputs).logits
    kl_bt, log_alpha_bt = acceptance.per_position(
      'kl', logits, teacher_logits, labels
    )
    kl = kl_bt.mean()
    total = (1 - distillation_weight) * text_loss + distillation_weight * kl
    agreement = jnp.exp(log_alpha_bt).mean()
    return total, {'loss': text_loss, 'kl': kl, 'agreement': agreement}

  return loss


def pretrain(
  config: PretrainConfig, workdir, mesh: Mesh | None = None
) -> LanguageModel:
  """Trains a model, resuming a run of the workdir.

  In addition to the files of `run.fit` it writes tokenizer.model, if it trains
  a tokenizer, and at the end the folder model/ for `specsamp.load`.

  Args:
    config: settings of the run.
    workdir: a folder that all processes see.
    mesh: where to train; None is one device.

  Returns:
    The model in float32.

  Raises:
    UserError: see `run.fit`; or the corpus, tokenizer, teacher or its files do
      not fit the config, or another run holds a folder.
    FloatingPointError: a loss, a gradient or the state is not finite.
  """
  workdir = pathlib.Path(workdir).absolute()
  files.check_replaceable(workdir / 'model', weights.is_ours)
  feature_cache.check_processes(config.features)
  teacher = model_dir.load(config.teacher, mesh) if config.teacher else None
  transformer = Transformer(config.model)
  start = _start(config, teacher)
  tokenizer = None

  def data():
    nonlocal tokenizer  # may be trained on the text
    frozen = teacher.params if teacher else None
    if config.continuations:
      tokenizer = _tokenizer(config, teacher, [], workdir)
      return *_sequences(config, teacher), frozen
    parts = corpora.split(corpora.read(config.corpus, config.pattern))
    train, held_out = (list(part.values()) for part in parts)
    extra = []
    if config.extra_corpus:
      more = corpora.read_folder(config.extra_corpus, config.pattern)
      extra = corpora.unlike(more.values(), held_out)
    tokenizer = _tokenizer(config, teacher or start, train + extra, workdir)
    tokens = [packing.tokenize(train, tokenizer)] * config.repeats
    if extra:
      tokens.append(packing.tokenize(extra, tokenizer))
    packed = [
      packing.Packed(part, config.batch_size, config.length, config.seed)
      for part in (
        np.concatenate(tokens),
        packing.tokenize(held_out, tokenizer),
      )
    ]
    return *packed, frozen

  with locks.lock_shared([config.features], workdir):
    params = run.fit(
      config,
      workdir,
      mesh,
      init=(lambda _: start.params) if start else transformer.init_params,
      loss=make_loss(transformer, teacher, config.distillation_weight),
      data=data,
    )
  model = LanguageModel(transformer, params, tokenizer)
  model_dir.save(model, workdir / 'model', config.storage)
  return model


def _sequences(config: PretrainConfig, teacher: LanguageModel):
  """Returns the teacher's continuations: to train on and to validate on."""
  data = []
  for name in ('train', 'held_out'):
    tokens = continuations.read(
      config.continuations, name, teacher, config.length + 1
    )
    rows = packing.Rows(tokens, config.batch_size, config.seed)
    features = None
    if config.features:
      folder = pathlib.Path(config.features, name)
      features = FeatureCache(folder, teacher, tokens)
    data.append(Sequences(rows, features))
  return data


def _start(
  config: PretrainConfig, teacher: LanguageModel | None
) -> LanguageModel | None:
  """Returns the model of `config.init` in float32, or None.

  Raises:
    UserError: its shape is not the config's, or its tokenizer not the
      teacher's.
  """
  if not config.init:
    return None
  start = model_dir.load(config.init, dtype='float32')
  for field in dataclasses.fields(TransformerConfig):
    got = getattr(start.config, field.name)
    expected = getattr(config.model, field.name)
    if got != expected and field.name != 'dtype':
      raise UserError(
        f'init {config.init}: {field.name}: got {got}, expected {expected}'
      )
  if teacher and teacher.tokenizer != start.tokenizer:
    raise UserError(
      f'init {config.init}: its tokenizer is not that of the teacher '
      f'{config.teacher}'
    )
  return start


def _tokenizer(
  config: PretrainConfig,
  model: LanguageModel | None,
  texts: list[str],
  workdir: pathlib.Path,
):
  """Returns a model's tokenizer, the config's, or one trained on the texts."""
  path = workdir / tokenizers.FILE

  def train():
    if not path.exists():
      tokenizer = tokenizers.train(texts, config.model.vocab_size)
      workdir.mkdir(parents=True, exist_ok=True)
      files.replace(path, tokenizer.proto)

  if model is not None:
    tokenizer = model.tokenizer
  else:
    if not config.tokenizer:
      distributed.first_does(train, f'tokenizer {path}')
    tokenizer = tokenizers.SentencePiece.load(config.tokenizer or path)
  if tokenizer.vocab_size != config.model.vocab_size:
    raise UserError(
      f'model.vocab_size is {config.model.vocab_size}, but the tokenizer has '
      f'{tokenizer.vocab_size} pieces'
    )
  return tokenizer
