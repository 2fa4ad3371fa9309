"""Models and drafters by the names that a config has for them."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable

from jax.sharding import Mesh

from specsamp import user_modules, zoo
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
from specsamp.drafting.draft import DynamicTree
from specsamp.errors import UserError, unknown
from specsamp.jobs import trial
from specsamp.language_model import LanguageModel


@dataclasses.dataclass(frozen=True)
class Lookup:
  """How the drafters without a model of their own look up.

  Attributes:
    n_max: tokens of the longest n-gram that `ngram` looks for.
    n_min: of the shortest.
    datastore: a text file or a folder of them to look in beside a row's own
      text; '' is none.
    window: guesses that ride along with `lookahead`, at each level.
    draft_length: of `ngram_or_draft`, tokens of the draft model where there is
      no match, no more than of a match; 0 is as many.
  """

  n_max: int = 3
  n_min: int = 1
  datastore: str = ''
  window: int = 7
  draft_length: int = 0


_LOOKUPS = ('ngram', 'ngram_or_draft', 'lookahead')


@dataclasses.dataclass(frozen=True)
class Models:
  """A target and what may draft for it.

  Attributes:
    target: scores.
    load_draft: returns a smaller model with the target's vocabulary; it is
      called where a drafter needs one, so that a target for which there is none
      can have other drafters.
    trained: by name, the embedded drafters of an embedded target, and those
      of folders from when they are first asked for.
  """

  target: LanguageModel
  load_draft: Callable[[], LanguageModel]
  trained: dict[str, DraftModule]

  @functools.cached_property
  def draft(self) -> LanguageModel:
    """The smaller model.

    Raises:
      UserError: none was named, and the embedded one has another tokenizer
        than the target.
    """
    return self.load_draft()

  def drafter(
    self,
    name: str,
    shape: int | TokenTree,
    law: str,
    coupled: bool = False,
    lookup: Lookup | None = None,
  ) -> Drafter:
    """The drafter of this name.

    Args:
      name: '' is the draft model; ngram, lookahead, ngram_or_draft (n-grams,
        and the draft model where there is no match); that of an embedded
        drafter, or the folder of a trained one; or `my.module:Name` of a
        user's own, which is called with these models, the tree and the law.
      shape: see `model_drafter`.
      law: see `model_drafter`.
      coupled: whether the verifier is: the draft model, alone or not, then
        runs its races if its law is deterministic.
      lookup: for those that look up.

    Raises:
      UserError: no such drafter, one for another target or law, or one of a
        user's own that is none.
    """
    lookup = lookup or Lookup()
    # The nodes of a dynamic tree are the most probable ones, not winners.
    is_dynamic = isinstance(shape, DynamicTree)
    coupled = coupled and law == 'deterministic' and not is_dynamic
    if not name:
      return model_drafter(self.draft, shape, law, coupled)
    if user_modules.is_name(name):
      return self._own(name, shape, law)
    if name in ('ngram', 'lookahead') and law != 'deterministic':
      raise UserError(
        f"drafter {name}: got law {law!r}, expected 'deterministic', which "
        "verifier 'naive' verifies"
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
    """Tokens that the drafter of this name can draft in a round."""
    if not name or name in _LOOKUPS or user_modules.is_name(name):
      return math.inf
    return self._trained(name).module.ahead or math.inf

  def _trained(self, name: str) -> DraftModule:
    if name in self.trained:
      return self.trained[name]
    if folders.is_path(name):
      trained = drafter_dir.load(name)
      if not trained.target:
        # Here and not in `trained_drafter`: once for all shapes and laws, and
        # where there is a log for it.
        trial.warn_if_chance(name, trained, self.target)
      self.trained[name] = trained
      return trained
    others = f', a folder, here or at the hub, or your own, {user_modules.FORM}'
    names = [*_LOOKUPS, *self.trained]
    raise UserError(unknown('drafter', name, names, others))

  def _own(self, name: str, shape: int | TokenTree, law: str) -> Drafter:
    tree = candidates.check_shape(shape, law)
    drafter = user_modules.make(
      'drafter', name, models=self, tree=tree, law=law
    )
    checks.check_parts(drafter)
    if (drafter.tree, drafter.law) != (tree, law):
      raise UserError(
        f'drafter {name}: made one of {drafter.tree.size} nodes and law '
        f'{drafter.law!r}, expected the {tree.size} and {law!r} of the config'
      )
    drafter.check(self.target, 1)
    checks.check_first_draft(drafter, self.target)
    return drafter


@functools.lru_cache(maxsize=1)
def _documents(path: str, tokenizer: Tokenizer) -> list[list[int]]:
  """The tokens of a text file, or of each file of a folder.

  Raises:
    UserError: there is no text there.
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
  """Models of these folders, or the embedded ones where a name is empty.

  Args:
    target: folder, or name of the hub.
    draft: likewise. The embedded one serves a target of its tokenizer alone.
    mesh: where to place them.
    dtype: that the target computes in; '' is what it is loaded with.
  """
  if target:
    scores, trained = model_dir.load(target, mesh, dtype or None), {}
  else:
    pair = zoo.load('pycode', dtype)
    scores, trained = pair.target.on(mesh), dict(pair.drafters)
  if not draft:
    return Models(scores, lambda: _embedded_draft(scores, mesh), trained)
  named = model_dir.load(draft, mesh).for_target(scores)
  return Models(scores, lambda: named, trained)


def _embedded_draft(target: LanguageModel, mesh: Mesh | None) -> LanguageModel:
  """For a target beside which no draft was named.

  Raises:
    UserError: their tokenizers differ.
  """
  try:
    return zoo.load('pycode').draft.on(mesh).for_target(target)
  except UserError as error:
    raise UserError(
      'draft: got none, expected a folder or a name of the hub, for the '
      f'embedded one does not fit: {error}'
    ) from None
