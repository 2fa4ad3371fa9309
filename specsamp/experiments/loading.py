"""Loads models and drafters by their names in a config."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable
from typing import get_args

from absl import logging
from jax.sharding import Mesh

from specsamp import verification, zoo
from specsamp.checkpoints import drafter_dir, folders, model_dir
from specsamp.checkpoints.huggingface import families
from specsamp.data import corpora, tokenizers
from specsamp.data.tokenizers import Tokenizer
from specsamp.decoding import trial
from specsamp.drafting import (
  Drafter,
  DraftModule,
  TokenTree,
  candidates,
  checks,
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
  ngram_or_model,
  trained_drafter,
)
from specsamp.drafting.draft import DynamicTree, Law
from specsamp.drafting.drafter import NoDrafter
from specsamp.drafting.trained import kind_of
from specsamp.errors import UserError, describe_unknown
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig
from specsamp.utils import files, user_modules


@dataclasses.dataclass(frozen=True)
class Lookup:
  """Parameters of drafters that look up tokens.

  Attributes:
    n_max: tokens of the longest n-gram that `ngram` looks up.
    n_min: tokens of the shortest n-gram.
    datastore: a text file or a folder of text files to search in addition to a
      row's text; '' for none.
    window: guesses of `lookahead` at each level.
    draft_length: for `ngram_or_draft`, upper bound on the tokens of the draft
      model in rows without a match; 0 is the draft length of a match.
  """

  n_max: int = 3
  n_min: int = 1
  datastore: str = ''
  window: int = 7
  draft_length: int = 0


NO_DRAFTER = 'none'  # plain decoding
SELF = 'self'  # a draft made of the target's weights
MTP = 'mtp'  # the drafter in the target's folder
_LOOKUPS = ('ngram', 'ngram_or_draft', 'lookahead')


def _default_law(name: str, is_dynamic: bool, verifier: str) -> Law:
  """Returns the law of a draft if the config does not name a law."""
  if name in ('ngram', 'lookahead') or is_dynamic:
    return 'deterministic'
  if not verifier:
    return 'iid'
  accepted = verification.make(verifier).accepts
  # A coupled rule accepts most of a draft that ran the same races.
  if _is_coupled(verifier) and 'deterministic' in accepted:
    return 'deterministic'
  return next(law for law in get_args(Law) if law in accepted)


def _is_coupled(verifier: str) -> bool:
  return bool(verifier) and verification.is_coupled(verification.make(verifier))


@dataclasses.dataclass(frozen=True)
class Models:
  """A target and the models that may draft for it.

  Attributes:
    target: the target.
    load_draft: returns a smaller model with the target's vocabulary, when a
      drafter needs it.
    trained: trained drafters by their names: the embedded ones, and those of
      folders after they have been loaded.
    draft_weights: kind of the weights of drafters that are loaded, or ''.
    is_self_draft: True if the smaller model is made of the target's weights.
    folder: the target's folder or name on the hub, whose module of multi-token
      prediction is the drafter `MTP`; '' if unknown.
    mismatched_drafter: True to use a trained drafter far below its record, with
      a warning.
  """

  target: LanguageModel
  load_draft: Callable[[], LanguageModel]
  trained: dict[str, DraftModule]
  draft_weights: str = ''
  is_self_draft: bool = False
  folder: str = ''
  mismatched_drafter: bool = False

  @functools.cached_property
  def draft(self) -> LanguageModel:
    """The smaller model; raises `UserError` if none fits the target."""
    return self.load_draft()

  def drafter(
    self,
    name: str,
    shape: int | TokenTree,
    law: str = '',
    verifier: str = '',
    lookup: Lookup | None = None,
  ) -> Drafter:
    """Returns the drafter of this name.

    Args:
      name: `NO_DRAFTER`, `ngram`, `lookahead`, `ngram_or_draft`, an embedded or
        saved drafter, or a user-defined one; '' is the draft model.
      shape: a draft length, or a tree.
      law: how candidates are chosen, see `model_drafter`; '' is the law that
        this drafter and this verifier need.
      verifier: name of the verifier. If the verifier is coupled and the law
        deterministic, a model or trained drafter runs the races of the
        verifier.
      lookup: parameters of drafters that look up tokens.

    Raises:
      UserError: the drafter is unknown, is for another target or law, or is
        user-defined and invalid.
    """
    if name == NO_DRAFTER:
      return NoDrafter()
    lookup = lookup or Lookup()
    is_dynamic = isinstance(shape, DynamicTree)
    config_law, law = law, law or _default_law(name, is_dynamic, verifier)
    # The nodes of a dynamic tree are the most probable ones, not winners.
    coupled = (
      law == 'deterministic' and not is_dynamic and _is_coupled(verifier)
    )
    draft = functools.partial(
      model_drafter, law=law, coupled=coupled, of_target=self.is_self_draft
    )
    if not name:
      return draft(self.draft, shape)
    if user_modules.is_name(name):
      return self._user_defined(name, shape, law, is_fixed=bool(config_law))
    if name not in _LOOKUPS:
      return trained_drafter(
        self._trained(name), self.target, shape, law, coupled
      )
    if name != 'ngram_or_draft' and law != 'deterministic':
      raise UserError(
        f"drafter {name}: got law {law!r}, expected 'deterministic' or '', the "
        'default'
      )
    if name == 'lookahead':
      return lookahead_drafter(shape, lookup.window)
    datastore = None
    if lookup.datastore:
      datastore = _documents(lookup.datastore, self.target.tokenizer)
    ngram = ngram_drafter(
      shape, lookup.n_max, lookup.n_min, datastore=datastore
    )
    if name == 'ngram':
      return ngram
    if lookup.draft_length:
      shape = min(lookup.draft_length, ngram.tree.depth)
    return ngram_or_model(ngram, draft(self.draft, shape))

  def deepest(self, name: str) -> float:
    """Returns the largest draft length of the drafter of this name."""
    if name in ('', NO_DRAFTER, *_LOOKUPS) or user_modules.is_name(name):
      return math.inf
    return self._trained(name).module.ahead or math.inf

  def _trained(self, name: str) -> DraftModule:
    if name in self.trained:
      return self.trained[name]
    is_inside = name == MTP and self.folder
    if is_inside or folders.is_path(name):
      path = self._with_mtp() if is_inside else name
      trained = drafter_dir.load(path, self.draft_weights or None)
      # Once for all shapes and laws, unlike in `trained_drafter`.
      _note_rope(name, trained, self.target.config)
      _check_acceptance(name, trained, self.target, self.mismatched_drafter)
      self.trained[name] = trained
      return trained
    if name == MTP:
      raise UserError(f'drafter {MTP}: it is inside a target; name that folder')
    others = f', a folder or a name on the hub, or yours, {user_modules.FORM}'
    names = [NO_DRAFTER, *_LOOKUPS, *self.trained]
    raise UserError(describe_unknown('drafter', name, names, others))

  def _with_mtp(self) -> pathlib.Path:
    """Returns the target's folder if it has multi-token prediction."""
    path = folders.find('drafter', self.folder)
    if not folders.read_config('drafter', path).get(families.MTP):
      raise UserError(
        f'drafter {MTP}: {path / folders.CONFIG} has no {families.MTP}: the '
        'model came without a module of multi-token prediction'
      )
    return path

  def _user_defined(
    self, name: str, shape: int | TokenTree, law: str, is_fixed: bool
  ) -> Drafter:
    """Returns a user-defined drafter of any law, or of `law` if `is_fixed`."""
    tree = candidates.check_shape(shape, law)
    drafter = user_modules.make(
      'drafter', name, models=self, tree=tree, law=law
    )
    checks.check_parts(drafter)
    if not is_fixed:
      law = drafter.law
    if (drafter.tree, drafter.law) != (tree, law):
      raise UserError(
        f'drafter {name}: made a drafter of {drafter.tree.size} nodes and law '
        f'{drafter.law!r}, expected {tree.size} and {law!r} as in the config'
      )
    drafter.check(self.target, 1)
    checks.check_first_draft(drafter, self.target)
    return drafter


@functools.lru_cache(maxsize=1)
def _documents(path: str, tokenizer: Tokenizer) -> list[list[int]]:
  """Returns the tokens of a text file, or of each file in a folder."""
  with files.reading(f'datastore {path}'):
    if pathlib.Path(path).is_dir():
      texts = list(corpora.read_folder(path, '**/*').values())
    else:
      texts = [pathlib.Path(path).read_text(encoding='utf-8')]
    if not any(text.strip() for text in texts):
      raise ValueError('empty')
  return [tokenizer.encode(text) for text in texts]


def name_of(path: str, weights: str) -> str:
  """Returns the name of a model in reports and servers."""
  name = pathlib.Path(path).absolute().name  # that of '.' too
  return '-'.join(filter(None, (name, weights)))


def note(target: LanguageModel) -> str:
  """Returns a sentence on a target with quantized weights, or ''."""
  if not target.weights:
    return ''
  return (
    f'The target has {target.weights} weights, whose distribution is not that '
    f'of its floats (fingerprint {target.fingerprint} instead of '
    f'{target.source_fingerprint}). Methods are compared with its own plain '
    'decoding.'
  )


def load(
  target: str,
  draft: str,
  mesh: Mesh | None,
  dtype: str = '',
  weights: str = '',
  draft_weights: str = '',
  mismatched_drafter: bool = False,
) -> Models:
  """Loads the models of a config.

  Args:
    target: a folder, a GGUF file or a name on the hub; '' is the embedded
      target.
    draft: a folder, a GGUF file or a name on the hub, whose tokenizer may be
      another one, see `LanguageModel.translated_for`; '' is the embedded draft,
      which needs a target with its tokenizer. See `self_draft` for 'self' and
      'self:N'.
    mesh: mesh to place the models on.
    dtype: compute dtype of the target; '' is that of its folder.
    weights: kind of the target's weights, see `model_dir.load`; '' is floats.
    draft_weights: the same for the draft and trained drafters.
    mismatched_drafter: see `Models`.
  """
  if target:
    loaded = model_dir.load(target, mesh, dtype or None, weights or None)
    trained = {}
  else:
    pair = zoo.load('pycode', dtype)
    loaded, trained = pair.target.on(mesh), dict(pair.drafters)
    if weights:
      loaded = loaded.quantized(weights)
  if draft_weights:
    quantize = lambda drafter: drafter.quantized(draft_weights)
    trained = {name: quantize(drafter) for name, drafter in trained.items()}
  models = functools.partial(
    Models,
    loaded,
    trained=trained,
    draft_weights=draft_weights,
    folder=target,
    mismatched_drafter=mismatched_drafter,
  )
  if draft == SELF or draft.startswith(f'{SELF}:'):
    named = self_draft(loaded, draft, draft_weights)
    return models(lambda: named, is_self_draft=True)
  if draft:
    named = model_dir.load(draft, mesh, weights=draft_weights or None)
    agrees = tokenizers.agree(loaded.tokenizer, named.tokenizer)
    named = (named.for_target if agrees else named.translated_for)(loaded)
    return models(lambda: named)

  def load_embedded() -> LanguageModel:
    try:
      model = zoo.load('pycode').draft.on(mesh).for_target(loaded)
      return model.quantized(draft_weights) if draft_weights else model
    except UserError as error:
      raise UserError(
        'draft: got none, expected a folder or a name on the hub, because the '
        f'embedded draft does not fit: {error}'
      ) from None

  return models(load_embedded)


def self_draft(target: LanguageModel, name: str, weights: str) -> LanguageModel:
  """Returns a draft made of the target's weights.

  Args:
    target: the target.
    name: 'self' for all layers, with weights in 8 bits; 'self:N' for the first
      N layers and the LM head, which share the target's arrays unless
      `weights` is set.
    weights: kind of the draft's weights; '' for 'self' is 'int8'.

  Raises:
    UserError: the number of layers is invalid, or the draft is the target.
  """
  count, config = name.removeprefix(SELF)[1:], target.config
  if name != SELF:
    if not (count.isdecimal() and 0 < int(count) < config.num_layers):
      raise UserError(
        f'draft: got {name!r}, expected {SELF}:N with N at least 1 and below '
        f"{config.num_layers}, the target's layers"
      )
    target = first_layers(target, int(count))
    return target.quantized(weights) if weights else target
  weights = weights or 'int8'
  if weights == target.weights:
    raise UserError(
      f'draft: got {name!r} with {weights} weights, which the target has too'
    )
  return target.quantized(weights)


def first_layers(model: LanguageModel, count: int) -> LanguageModel:
  """Returns a model of the first layers and the LM head, the same arrays."""
  config = dataclasses.replace(model.config, num_layers=count)
  params = {
    name: value
    for name, value in model.params.items()
    if not name.startswith('layers_') or int(name.split('_')[1]) < count
  }
  return LanguageModel(Transformer(config), params, model.tokenizer)


def _note_rope(
  name: str, trained: DraftModule, target: TransformerConfig
) -> None:
  """Logs the rotary embeddings of a drafter and its target if they differ.

  Some heads were trained so. Others lost theirs in a conversion.
  """
  config = trained.module.config
  rotary = [
    f'rope_theta {c.rope_theta:g}'
    + (f' and {c.rope_scaling}' if c.rope_scaling else '')
    for c in (config, target)
    if c.positions == 'rotary'
  ]
  if kind_of(trained.module).has_layers and len({*rotary}) == 2:
    logging.info('drafter %s: %s, the target has %s', name, *rotary)


def _check_acceptance(
  name: str, trained: DraftModule, target: LanguageModel, is_forced: bool
) -> None:
  """Compares a drafter's acceptance with its record, or with chance.

  The folder of a published drafter does not name the weights that it was
  trained for, and no shape reveals that it reads the wrong layers of a target.
  A drafter with a record that accepts under a tenth of it is refused, or only
  warned about if `is_forced`. One that drafts no better than chance is warned
  about.

  Measured acceptance of the embedded pair's drafters is 0.29 (Medusa), 0.68
  (EAGLE in parallel) and 0.73 (EAGLE), and at most 0.01 if the rows of their
  matrices are reversed. The most frequent token is 0.09 to 0.13 of these texts.

  Raises:
    UserError: the drafter is refused; or specsamp trained it, for another
      target.
  """
  tried = trial.run(trained, target)
  if tried is None:
    return
  accepted = (
    f'drafter {name}: {tried.acceptance:.2f} of the tokens that it drafts for '
    'this target are accepted'
  )
  # None or NaN is not a record.
  # Below chance, a record proves no more than a text of some tokens.
  recorded = trained.acceptance or 0
  if recorded > tried.chance and tried.acceptance < recorded / 10:
    cause = 'it was trained for other weights, or reads the wrong layers'
    if trained.target:  # the fingerprint of these weights
      cause = 'its weights, or how they are computed, have changed'
    line = (
      f'{accepted}, under a tenth of the {recorded:.2f} recorded '
      f'after its training: {cause}'
    )
    if not is_forced:
      raise UserError(f'{line}; --config.mismatched_drafter=true uses it')
    logging.warning('%s', line)
  # A text of one token proves nothing.
  elif tried.acceptance <= tried.chance and tried.acceptance < 1:
    cause = 'it was trained for other weights, or reads the wrong layers'
    if trained.target:
      cause = (
        'it was trained too little, or on texts unlike those of the target'
      )
    logging.warning(
      '%s, and %.2f would be if it always drafted the same token: %s',
      accepted,
      tried.chance,
      cause,
    )
