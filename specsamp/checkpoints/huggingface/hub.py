"""Repositories of the Hugging Face hub, in its cache or fetched to a folder.

The hub is `HF_ENDPOINT`, or huggingface.co; cache, token and `HF_HUB_OFFLINE`
are those of huggingface_hub.
"""

import contextlib
import fnmatch
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

from specsamp.errors import UserError
from specsamp.utils import distributed

# The files that a model or drafter is read from, and their licences.
_NEEDED = (
  'config.json',
  'generation_config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'tokenizer.model',
  'special_tokens_map.json',
  'added_tokens.json',
  'chat_template.jinja',
  'vocab.json',
  'merges.txt',
  'model.safetensors',
  'model-*.safetensors',
  'model.safetensors.index.json',
  'medusa_lm_head.safetensors',
  'LICENSE*',
)
_NAME = re.compile(
  r'(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]*\w)(@(?P<revision>.+))?'
)


class Repository(NamedTuple):
  """A repository of models.

  Attributes:
    name: `org/name`.
    revision: a branch, tag or commit; None is the newest.
  """

  name: str
  revision: str | None = None

  def __str__(self) -> str:
    return self.name + (f'@{self.revision}' if self.revision else '')


def parse(name) -> Repository | None:
  """Parses `org/name` or `org/name@revision`; returns None for other names."""
  match = _NAME.fullmatch(os.fspath(name))
  return Repository(**match.groupdict()) if match else None


def snapshot(what: str, repository: Repository) -> pathlib.Path:
  """Returns the folder of the hub's cache that holds a repository.

  Missing files are downloaded; without a network the cached ones are used. All
  processes of a run must call this: the first one downloads before the others
  look.

  Args:
    what: 'model' or 'drafter', for errors.
    repository: name and revision.

  Raises:
    UserError: the hub refuses the repository or cannot be reached, the
      repository has no safetensors, or huggingface_hub is not installed.
  """
  folders = []

  def download() -> None:
    intro = f'{what} {repository}: no such folder, and'
    with _hub(intro, repository) as api:
      folders.append(_download(api, repository))

  distributed.first_does(download, f'{what} {repository}')
  if not folders:
    download()
  return folders[0]


def fetch(what: str, repository: Repository, folder) -> None:
  """Downloads a model to a folder and verifies its files.

  An existing folder is verified and kept. A new one appears when all files have
  the hashes that the hub lists; until then they are in the hidden sibling
  `.NAME.fetching`, where the next call resumes an interrupted download.

  Args:
    what: name of the model in errors.
    repository: name and revision.
    folder: the destination.

  Raises:
    UserError: see `snapshot`; or a file is missing or not the hub's.
  """
  folder = pathlib.Path(folder)
  with _hub(f'{what}:', repository) as api:
    if folder.is_dir():
      if names := _wrong(api, repository, folder):
        raise UserError(
          f'{what}: {folder / names[0]} is not the file of {repository}, and '
          'the folder is not replaced; name another one with --to'
        )
      return
    partial = folder.with_name(f'.{folder.name}.fetching')
    _download(api, repository, local_dir=partial)
    names = _wrong(api, repository, partial)
  if names:
    for name in names:
      (partial / name).unlink(missing_ok=True)
    raise UserError(
      f'{what}: the downloaded {names[0]} is not the file of '
      f'{repository}; the same command downloads it again'
    )
  shutil.rmtree(partial / '.cache')  # the downloads' state
  partial.rename(folder)


def _download(api, repository: Repository, **options) -> pathlib.Path:
  """Downloads the needed files and returns their folder."""
  name, revision = repository
  folder = api.snapshot_download(
    name, revision=revision, allow_patterns=list(_NEEDED), **options
  )
  if not any(pathlib.Path(folder).glob('*.safetensors')):
    raise _NoWeights
  return pathlib.Path(folder)


def _wrong(api, repository: Repository, folder: pathlib.Path) -> list[str]:
  """Returns the needed files that are missing or have other hashes."""
  name, revision = repository
  report = api.verify_repo_checksums(name, revision=revision, local_dir=folder)
  names = [mismatch['path'] for mismatch in report.mismatches]
  names += report.missing_paths
  return [
    name
    for name in names
    if any(fnmatch.fnmatch(name, pattern) for pattern in _NEEDED)
  ]


class _NoWeights(Exception):
  """A repository has no safetensors."""


@contextlib.contextmanager
def _hub(intro: str, repository: Repository) -> Iterator[Any]:
  """Yields huggingface_hub's API, whose errors become one line with advice.

  The line begins with `intro` and the repository's page.
  """
  # The library itself reads the variable only when it is imported.
  endpoint = os.environ.get('HF_ENDPOINT') or 'https://huggingface.co'
  page = f'{intro} {endpoint}/{repository.name}'
  try:
    import huggingface_hub.errors
  except ImportError:
    raise UserError(
      f"{page} needs huggingface_hub: pip install 'specsamp[hf]'"
    ) from None
  errors = huggingface_hub.errors
  # A gated repository counts as one that is not found, so it goes first.
  advice = {
    _NoWeights: 'has no model.safetensors, and pickles are not read; a pull '
    f'request of it may have one: {repository.name}@refs/pr/NUMBER',
    errors.HFValidationError: 'is not a name of a repository',
    errors.GatedRepoError: 'is gated; accept its terms there, then set '
    'HF_TOKEN or run `hf auth login`',
    errors.RepositoryNotFoundError: 'does not exist, or is private: set '
    'HF_TOKEN or run `hf auth login`',
    errors.RevisionNotFoundError: f'has no revision {repository.revision}',
  }
  try:
    yield huggingface_hub.HfApi(endpoint=endpoint)
  except tuple(advice) as error:
    reason = next(advice[kind] for kind in advice if isinstance(error, kind))
    raise UserError(f'{page} {reason}') from None
  # HTTPError is raised by the HTTP library that huggingface_hub uses.
  except (errors.HfHubHTTPError, OSError, errors.HTTPError) as error:
    if getattr(error, 'errno', None):  # a full disk, a folder in the way
      raise
    for cause in (error, error.__cause__):
      if (response := getattr(cause, 'response', None)) is not None:
        raise UserError(f'{page} answers {response.status_code}') from None
    raise UserError(
      f'{page} cannot be reached; fetch it by hand where it can'
    ) from None
