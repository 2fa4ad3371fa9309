"""Published sets of prompts and models: what there is, and fetching them."""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import tabulate

from specsamp.checkpoints.huggingface import hub
from specsamp.data import published as data
from specsamp.errors import UserError, describe_unknown
from specsamp.models import published as models

_NOTE = f"""\
Each is fetched, and checked, by its name; several names, pairs too, by one
command:
  specsamp fetch humaneval llama-2-7b-chat+llama-68m --to=DIR
Without --to prompts go to {data.FOLDER} and a model to {models.FOLDER}/NAME,
where configs look. Models take huggingface_hub, pip install 'specsamp[hf]';
NAME@REVISION is another revision than the newest. (1) is gated: accept its
terms on its page, then set HF_TOKEN or run `hf auth login`.
"""


class Wanted(NamedTuple):
  """A name that was asked for.

  Attributes:
    name: a key of `data.SETS` or `models.MODELS`.
    revision: of a model's repository; None is the newest.
  """

  name: str
  revision: str | None


def listing() -> str:
  """Tables of all that can be fetched, and how it is; needs no network."""
  sets = [
    (
      name,
      each.task,
      _size(each.num_bytes),
      each.licence,
      f'github.com/{each.repository}',
    )
    for name, each in data.SETS.items()
  ]
  rows = [
    (
      name,
      each.use,
      f'{each.billions:g}B',
      _size(2e9 * each.billions),
      each.licence + ' (1)' * each.is_gated,
      f'huggingface.co/{each.repository}',
    )
    for name, each in models.MODELS.items()
  ]
  prompts = tabulate.tabulate(
    sets, ('prompts', '--config.tasks', 'size', 'licence', 'from')
  )
  weights = tabulate.tabulate(
    rows, ('model', 'for', 'parameters', '16 bits', 'licence', 'from')
  )
  return f'{prompts}\n\n{weights}\n\n{_NOTE}'


def run(names: Sequence[str], to: str | None = None) -> None:
  """Fetches what is named, or prints all names.

  Args:
    names: of sets, models, or pairs of models `a+b`; none prints `listing`.
    to: folder for all of them; None is where configs look.

  Raises:
    UserError: no such name, or weights that were never published: then nothing
      is fetched. Or one could not be fetched: those before it are there.
  """
  if not names:
    print(listing(), end='')
  # What is asked for twice is fetched once.
  for wanted in dict.fromkeys(each for name in names for each in parse(name)):
    if wanted.name in data.SETS:
      published = data.SETS[wanted.name]
      where = pathlib.Path(to or data.FOLDER)
      _announce(wanted.name, published.url, published.licence)
      print(f'{wanted.name}: {data.fetch(wanted.name, where)} is there')
    else:
      _fetch_model(wanted, pathlib.Path(to or models.FOLDER))


def parse(name: str) -> list[Wanted]:
  """What a name on the command line stands for: a set, a model, or several.

  Raises:
    UserError: nothing that there is.
  """
  if name in data.SETS:
    return [Wanted(name, None)]
  found = []
  for part in name.split('+'):
    model, _, revision = part.partition('@')
    if model in models.NEVER_PUBLISHED:
      raise UserError(f'{model}: its weights were never published')
    if model not in models.MODELS:
      names = [*data.SETS, *models.MODELS]
      raise UserError(
        describe_unknown('fetch', part, names, ', or a pair such as a+b')
      )
    found.append(Wanted(model, revision or None))
  return found


def _fetch_model(wanted: Wanted, to: pathlib.Path) -> None:
  published = models.MODELS[wanted.name]
  folder = to / wanted.name
  repository = hub.Repository(published.repository, wanted.revision)
  _announce(wanted.name, repository, published.licence)
  hub.fetch(wanted.name, repository, folder)
  print(f'{wanted.name}: {folder} is there')


def _announce(name: str, source, licence: str) -> None:
  print(f'{name}: from {source}, licence: {licence}', flush=True)


def _size(num_bytes: float) -> str:
  units = ((1e9, 'GB'), (1e6, 'MB'), (1e3, 'kB'))
  unit, name = next(each for each in units if num_bytes >= each[0])
  return f'{num_bytes / unit:.3g} {name}'
