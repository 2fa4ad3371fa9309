"""Downloads published prompts and models by name, and lists their names."""

import pathlib
from collections.abc import Sequence

import tabulate

from specsamp.checkpoints import folders
from specsamp.data import published as data
from specsamp.errors import UserError, describe_unknown
from specsamp.models import published as models

_NOTE = f"""\
A command fetches and verifies these names, several at once and pairs too:
  specsamp fetch humaneval llama-2-7b-chat+llama-68m --to=DIR
Without --to prompts go to {data.FOLDER} and a model to {models.FOLDER}/NAME,
where configs look. Models need huggingface_hub, pip install 'specsamp[hf]';
NAME@REVISION is another revision than the newest. (1) is gated: accept its
terms on its page, then set HF_TOKEN or run `hf auth login`.
"""


def listing() -> str:
  """Returns tables of all names and how to fetch them, without a network."""
  prompts = [
    {
      'prompts': name,
      '--config.tasks': published.task,
      'size': f'{published.num_bytes / 1e6:.2f} MB',
      'licence': published.licence,
      'from': f'github.com/{published.repository}',
    }
    for name, published in data.SETS.items()
  ]
  weights = [
    {
      'model': name,
      'for': published.use,
      'parameters': f'{published.billions:g}B',
      '16 bits': f'{2 * published.billions:.3g} GB',
      'licence': published.licence + ' (1)' * published.is_gated,
      'from': f'huggingface.co/{published.repository}',
    }
    for name, published in models.MODELS.items()
  ]
  tables = [tabulate.tabulate(rows, 'keys') for rows in (prompts, weights)]
  return '\n\n'.join([*tables, _NOTE])


def run(names: Sequence[str], to: str | None = None) -> None:
  """Fetches the named prompts and models; without a name, prints all names.

  Args:
    names: names of sets, models, or pairs of models `a+b`.
    to: folder for all of them; None is where configs look.

  Raises:
    UserError: a name is unknown or its weights were never published (nothing
      is fetched), or a download failed (earlier downloads are kept).
  """
  if not names:
    print(listing(), end='')
  # Duplicates are fetched once.
  wanted = dict.fromkeys(item for name in names for item in parse(name))
  for name, revision in wanted:
    is_set = name in data.SETS
    published = (data.SETS if is_set else models.MODELS)[name]
    repository = '@'.join(filter(None, (published.repository, revision)))
    source = published.url if is_set else repository
    print(f'{name}: from {source}, licence: {published.licence}', flush=True)
    if is_set:
      path = data.fetch(name, pathlib.Path(to or data.FOLDER))
    else:
      path = pathlib.Path(to or models.FOLDER) / name
      folders.fetch(name, repository, path)
    print(f'{name}: {path} is there')


def parse(name: str) -> list[tuple[str, str | None]]:
  """Parses a set, a model, or a pair of models.

  Returns:
    Keys of `data.SETS` or `models.MODELS`, each with a revision or None.

  Raises:
    UserError: the name is unknown, or its weights were never published.
  """
  if name in data.SETS:
    return [(name, None)]
  wanted = []
  for part in name.split('+'):
    model, _, revision = part.partition('@')
    if model in models.NEVER_PUBLISHED:
      raise UserError(f'{model}: its weights were never published')
    if model not in models.MODELS:
      names = [*data.SETS, *models.MODELS]
      raise UserError(
        describe_unknown('fetch', part, names, ', or a pair such as a+b')
      )
    wanted.append((model, revision or None))
  return wanted
