"""Loads models and drafters by their names in a config."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable
from typing import get_args

from jax.sharding import Mesh

from specsamp import verification, zoo
from specsamp.checkpoints import drafter_dir, folders, model_dir
from specsamp.data import corpora
from specsamp.data.tokenizers import Tokenizer
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
from specsamp.errors import UserError, describe_unknown
from specsamp.experiments import trial
from specsamp.language_model import LanguageModel
from specsamp.utils import user_modules


@dataclasses.dataclass(frozen=True)
class Lookup:
  """Parameters of drafters that look up tokens.

  Attributes:
    n_max: tokens of the longest n-gram that `ngram` looks up.
    n_min: tokens of the shortest n-gram.
    datastore: a text file or a folder of text files to search in addition to a
      row's text; '' for none.
    window: guesses of `lookahead` at each level.
    draft_length: for `ngram_or_draft`, tokens of the draft model if there is no
      match, at most those of a match; 0 is as many as those of a match.
  """

  n_max: int = 3
  n_min: int = 1
  datastore: str = ''
  window: int = 7
  draft_length: int = 0


NO_DRAFTER = 'none'  # plain decoding
_LOOKUPS = ('ngram', 'ngram_or_draft', 'lookahead')


def law_for(name: str, is_dynamic: bool, verifier: str) -> Law:
  """Returns the law of a draft for which none is given.

  Args:
    name: the drafter, see `Models.drafter`.
    is_dynamic: True if drafts choose the shape of their tree.
    verifier: the rule by its name; '' if none is given either.
  """
  if name in ('ngram', 'lookahead') or is_dynamic:
    return 'deterministic'
  if not verifier:
    return 'iid'
  rule = verification.make(verifier)
  # A coupled rule accepts most of a draft that ran the same races.
  if verification.is_coupled(rule) and 'deterministic' in rule.accepts:
    return 'deterministic'
  return next(law for law in get_args(Law) if law in rule.accepts)


@dataclasses.dataclass(frozen=True)
class Models:
  """A target and the models that may draft for it.

  Attributes:
    target: the target.
    load_draft: returns a smaller model with the target's vocabulary. It is
      called when a drafter needs the model, so that a target without one can
      have other drafters.
    trained: trained drafters by their names: the embedded ones of the embedded
      target, and those of folders after they have been loaded.
  """

  target: LanguageModel
  load_draft: Callable[[], LanguageModel]
  trained: dict[str, DraftModule]

  @functools.cached_property
  def draft(self) -> LanguageModel:
    """The smaller model.

    Raises:
      UserError: the config names none, and the embedded draft has another
        tokenizer than the target.
    """
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
        this drafter and this verifier need, see `law_for`.
      verifier: name of the verifier. If the verifier is coupled and the law
        deterministic, the draft model runs the races of the verifier.
      lookup: parameters of drafters that look up tokens.

    Raises:
      UserError: an unknown drafter, one for another target or law, or an
        invalid user-defined one.
    """
    if name == NO_DRAFTER:
      return NoDrafter()
    lookup = lookup or Lookup()
    is_dynamic = isinstance(shape, DynamicTree)
    config_law, law = law, law or law_for(name, is_dynamic, verifier)
    coupled = (
      law == 'deterministic'
      # The nodes of a dynamic tree are the most probable ones, not winners.
      and not is_dynamic
      and bool(verifier)
      and verification.is_coupled(verification.make(verifier))
    )
    if not name:
      return model_drafter(self.draft, shape, law, coupled)
    if user_modules.is_name(name):
      return self._user_defined(name, shape, law, is_fixed=bool(config_law))
    if name in ('ngram', 'lookahead') and law != 'deterministic':
      raise UserError(
        f"drafter {name}: got law {law!r}, expected 'deterministic' or '', the "
        'default'
      )
    if name == 'lookahead':
      return lookahead_drafter(shape, lookup.window)
    if name in _LOOKUPS:
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
      model = model_drafter(self.draft, shape, law, coupled)
      return ngram_or_model(ngram, model)
    return trained_drafter(self._trained(name), self.target, shape, law)

  def deepest(self, name: str) -> float:
    """Returns the largest draft length of the drafter of this name."""
    if (
      not name or name in (NO_DRAFTER, *_LOOKUPS) or user_modules.is_name(name)
    ):
      return math.inf
    return self._trained(name).module.ahead or math.inf

  def _trained(self, name: str) -> DraftModule:
    if name in self.trained:
      return self.trained[name]
    if folders.is_path(name):
      trained = drafter_dir.load(name)
      # Once for all shapes and laws, unlike in `trained_drafter`.
      trial.warn_if_chance(name, trained, self.target)
      self.trained[name] = trained
      return trained
    others = (
      f', a folder, here or on the hub, or a user-defined {user_modules.FORM}'
    )
    names = [NO_DRAFTER, *_LOOKUPS, *self.trained]
    raise UserError(describe_unknown('drafter', name, names, others))

  def _user_defined(
    self, name: str, shape: int | TokenTree, law: str, is_fixed: bool
  ) -> Drafter:
    """Returns a user-defined drafter; its law may differ unless it is fixed."""
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
  """Returns the tokens of a text file, or of each file in a folder.

  Raises:
    UserError: there is no text.
  """
  where = pathlib.Path(path)
  try:
    if where.is_dir():
      texts = list(corpora.read_folder(where, '**/*').values())
    else:
      texts = [where.read_text(encoding='utf-8')]
  except UserError:
    raise UserError(f'datastore {path}: no text file in this folder') from None
  except OSError as error:
    raise UserError(f'datastore {path}: {error.strerror}') from None
  except UnicodeDecodeError:
    raise UserError(f'datastore {path}: not UTF-8 text') from None
  if not any(text.strip() for text in texts):
    raise UserError(f'datastore {path}: empty')
  return [tokenizer.encode(text) for text in texts]


def load(target: str, draft: str, mesh: Mesh | None, dtype: str = '') -> Models:
  """Loads the models of a config.

  Args:
    target: a folder or a name on the hub; '' is the embedded target.
    draft: a folder or a name on the hub; '' is the embedded draft, which needs
      a target with its tokenizer.
    mesh: mesh to place the models on.
    dtype: compute dtype of the target; '' is that of its folder.
  """
  if target:
    loaded, trained = model_dir.load(target, mesh, dtype or None), {}
  else:
    pair = zoo.load('pycode', dtype)
    loaded, trained = pair.target.on(mesh), dict(pair.drafters)
  if not draft:
    return Models(loaded, lambda: _embedded_draft(loaded, mesh), trained)
  named = model_dir.load(draft, mesh).for_target(loaded)
  return Models(loaded, lambda: named, trained)


def _embedded_draft(target: LanguageModel, mesh: Mesh | None) -> LanguageModel:
  try:
    return zoo.load('pycode').draft.on(mesh).for_target(target)
  except UserError as error:
    raise UserError(
      'draft: got none, expected a folder or a name on the hub, because the '
      f'embedded draft does not fit: {error}'
    ) from None
