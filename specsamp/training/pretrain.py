"""Training a language model on text, alone or with a teacher."""

import dataclasses
import functools
import pathlib
from typing import Any, get_args

import numpy as np
from jax.sharding import Mesh

from specsamp.checkpoints import model_dir, weights
from specsamp.data import corpora, packing, tokenizers
from specsamp.errors import UserError, check_name, check_range
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig, float16
from specsamp.training import feature_cache, run, run_config
from specsamp.training.continuations import written
from specsamp.training.feature_cache import FeatureCache, Sequences
from specsamp.training.objectives import language_model as losses
from specsamp.utils import distributed, files, locks


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(run_config.RunConfig):
  """What fixes a run, beside the files it reads: it ends with the same weights.

  Attributes:
    model: shape of the model to train.
    corpus: a folder of text, or '' for the standard library of this Python.
    pattern: the corpus' files, a glob relative to its folder.
    repeats: times that an epoch reads each of them.
    extra_corpus: a folder of text that an epoch reads once beside them; '' is
      none. Its files are of the same pattern, and none is held out: those that
      are in good part like a held-out one of the corpus are left out.
    tokenizer: a SentencePiece model; '' trains one of `model.vocab_size`
      pieces on the corpus.
    init: folder of a model of this shape to begin with; its tokenizer is used.
      '' begins at random.
    teacher: folder of a model to distil from; its tokenizer is used. '' trains
      on the text alone.
    continuations: folder of the teacher's continuations that
      `launch/distill.py` made, to train on in place of the corpus (DistillSpec,
      2310.08461); each has `length` tokens and a label. '' is none.
    features: folder that keeps the teacher's final hidden states of these, for
      other runs, and for drafters that train on all sequences of the folder;
      '' computes them in every step.
    distillation_weight: of KL(teacher || model) in the loss; the text's
      cross-entropy has the rest.
    storage: of the finished model's matrices, float32 or int8.
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
    check_name('storage', self.storage, get_args(run_config.Storage))
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


def from_dict(values: dict[str, Any]) -> PretrainConfig:
  """The config of nested plain values; `UserError` on a bad key or value."""
  with run_config.reading_config():
    model = TransformerConfig.from_dict(values['model'])
    return PretrainConfig(**(values | {'model': model}))


def make_loss(
  transformer: Transformer,
  teacher: LanguageModel | None,
  distillation_weight: float,
):
  """(params, teacher's params, batch) -> loss, metrics.

  A batch has `tokens` [B, T + 1], and may have the teacher's final hidden
  states as `features` [B, T, D], of which its logits are made then.
  """

  def loss(params, teacher_params, batch):
    tokens = batch['tokens']
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    logits = transformer.apply({'params': params}, inputs).logits
    text = losses.next_token(logits, labels)
    if teacher is None:
      return text, {'loss': text}
    apply = functools.partial(
      teacher.transformer.apply, {'params': teacher_params}
    )
    if 'features' in batch:
      features = batch['features'].astype(teacher.config.dtype)
      wanted = apply(features, method='logits')
    else:
      wanted = apply(inputs).logits
    kl = losses.distillation(logits, wanted)
    total = (1 - distillation_weight) * text + distillation_weight * kl
    return total, {
      'loss': text,
      'kl': kl,
      'agreement': losses.agreement(logits, wanted),
    }

  return loss


def pretrain(
  config: PretrainConfig, workdir, mesh: Mesh | None = None
) -> LanguageModel:
  """Trains, or goes on where a run in this workdir was cut off.

  Adds to what `run.fit` writes into the workdir: tokenizer.model if it trains
  one, and when done model/ (a folder for `specsamp.load`, of `config.storage`).
  Returns the model as it was trained, in float32.

  Args:
    config: what fixes the run.
    workdir: a folder that all processes see.
    mesh: where to train; None is one device.

  Raises:
    UserError: the corpus, tokenizer, teacher, or what is kept of it does not
      fit the config, the config not the mesh, another run holds a folder, or
      the last checkpoint cannot be read.
    FloatingPointError: loss or gradient is no longer finite.
  """
  workdir = pathlib.Path(workdir).absolute()
  files.check_replaceable(workdir / 'model', weights.is_ours)
  feature_cache.check(config.features)
  teacher = model_dir.load(config.teacher, mesh) if config.teacher else None
  transformer = Transformer(config.model)
  begun = _begun(config, teacher)
  tokenizer = None

  def data():
    nonlocal tokenizer  # may be trained on the text
    if config.continuations:
      tokenizer = _tokenizer(config, teacher, [], workdir)
      packed = _sequences(config, teacher)
    else:
      train, extra, held_out = _texts(config)
      given = teacher or begun
      tokenizer = _tokenizer(config, given, train + extra, workdir)
      packed = _packed(config, tokenizer, train, extra, held_out)
    return *packed, teacher.params if teacher else None

  with locks.lock_shared([config.features], workdir):
    params = run.fit(
      config,
      workdir,
      mesh,
      init=(lambda key: begun.params) if begun else transformer.init_params,
      loss=make_loss(transformer, teacher, config.distillation_weight),
      data=data,
    )
  model = LanguageModel(transformer, params, tokenizer)
  model_dir.save(model, workdir / 'model', config.storage)
  return model


def _texts(config: PretrainConfig) -> tuple[list[str], list[str], list[str]]:
  """(to train on, to train on beside it, held out)."""
  train, held_out = corpora.split(corpora.read(config.corpus, config.pattern))
  extra = []
  if config.extra_corpus:
    more = corpora.read_folder(config.extra_corpus, config.pattern)
    extra = corpora.unlike(more.values(), held_out.values())
  return list(train.values()), extra, list(held_out.values())


def _packed(config: PretrainConfig, tokenizer, train, extra, held_out):
  """Text to train on and to validate on."""
  tokens = [packing.tokenize(train, tokenizer)] * config.repeats
  if extra:
    tokens.append(packing.tokenize(extra, tokenizer))
  return tuple(
    packing.Packed(each, config.batch_size, config.length, config.seed)
    for each in (np.concatenate(tokens), packing.tokenize(held_out, tokenizer))
  )


def _sequences(config: PretrainConfig, teacher: LanguageModel):
  """As `_packed`, of what the teacher wrote."""
  made = []
  for name in ('train', 'held_out'):
    tokens = written(config.continuations, name, teacher, config.length + 1)
    rows = packing.Rows(tokens, config.batch_size, config.seed)
    features = None
    if config.features:
      folder = pathlib.Path(config.features) / name
      features = FeatureCache(folder, teacher, tokens)
    made.append(Sequences(rows, features))
  return tuple(made)


def _begun(
  config: PretrainConfig, teacher: LanguageModel | None
) -> LanguageModel | None:
  """The model to begin with, in float32; None is none.

  Raises:
    UserError: it is of another shape, or of another tokenizer than the teacher.
  """
  if not config.init:
    return None
  begun = model_dir.load(config.init, dtype='float32')
  for field in dataclasses.fields(TransformerConfig):
    got, expected = (
      getattr(each, field.name) for each in (begun.config, config.model)
    )
    if got != expected and field.name != 'dtype':
      raise UserError(
        f'init {config.init}: {field.name}: got {got}, expected {expected}'
      )
  if teacher and teacher.tokenizer != begun.tokenizer:
    raise UserError(
      f'init {config.init}: got another tokenizer than that of the teacher '
      f'{config.teacher}, expected the same'
    )
  return begun


def _tokenizer(config: PretrainConfig, given, texts, workdir: pathlib.Path):
  """That of a model that is given, or of the config, or trained on texts."""
  path = workdir / tokenizers.FILE
  if given is not None:
    tokenizer = given.tokenizer
  elif config.tokenizer:
    tokenizer = tokenizers.SentencePiece.load(config.tokenizer)
  else:

    def train():
      if path.exists():
        return
      tokenizer = tokenizers.train(texts, config.model.vocab_size)
      workdir.mkdir(parents=True, exist_ok=True)
      files.replace(path, tokenizer.proto)

    distributed.first_does(train, f'tokenizer {path}')
    tokenizer = tokenizers.SentencePiece.load(path)
  if tokenizer.vocab_size != config.model.vocab_size:
    raise UserError(
      f'model.vocab_size is {config.model.vocab_size}, but the tokenizer has '
      f'{tokenizer.vocab_size} pieces'
    )
  return tokenizer
