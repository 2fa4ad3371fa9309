"""Places of models and drafters: local ones, and repositories of the hub.

The hub is `HF_ENDPOINT`, or huggingface.co; cache, token and `HF_HUB_OFFLINE`
are those of huggingface_hub.
"""

import contextlib
import difflib
import fnmatch
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

from specsamp.errors import UserError
from specsamp.models import published
from specsamp.utils import distributed, files

CONFIG = 'config.json'
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
  r'(?P<repository>[A-Za-z0-9][\w.-]*/[\w.-]*\w(@[^:]+)?)(:(?P<file>.+\.gguf))?'
)


def find(what: str, name) -> pathlib.Path:
  """Returns the local folder of a name, or the hub's folder in the cache.

  A model may also be a GGUF file. A local folder takes precedence. A name that
  begins with an existing folder, or with the folder where configs keep models,
  is a path and never a name of the hub. Missing files are downloaded; without a
  network the cached ones are used. All processes of a run must call this.

  Args:
    what: 'model', 'drafter' or 'target', for errors.
    name: a path, or `org/name` or `org/name@revision` of the hub. A model's
      file follows after a colon: `org/name:FILE.gguf`.

  Raises:
    UserError: the folder or file does not exist (the message gives advice), a
      GGUF file is not requested as a model, the hub refuses the repository or
      cannot be reached, the repository lacks safetensors or the file, or
      huggingface_hub is not installed.
  """
  path = pathlib.Path(name)
  repository, hint = os.fspath(name), ''
  is_file = path.suffix == '.gguf'
  if is_file and what != 'model':
    raise UserError(f'{what} {repository}: got a GGUF file, expected a folder')
  match = _NAME.fullmatch(repository)
  is_name = match and (match['file'] or not is_file)  # DIR/FILE.gguf is a path
  if is_name and path.parts[0] != published.FOLDER:
    # The first process decides, so that none waits for another at the hub.
    if not distributed.of_first(int(pathlib.Path(path.parts[0]).is_dir())):
      return _snapshot(what, match['repository'], match['file'])
    hint = f', and not a name of the hub, as {path.parts[0]} is a folder here'
  if path.is_dir() or is_file and path.is_file():
    return path
  if command := published.command(path):
    hint = f'; {command} fetches it'
  elif path.parent.is_dir():
    names = [
      entry.name
      for entry in path.parent.iterdir()
      if (entry.suffix == '.gguf' if is_file else entry.is_dir())
    ]
    if close := difflib.get_close_matches(path.name, names, 1):
      hint = f'; did you mean {path.with_name(close[0])}?'
  kind = 'file' if is_file else 'folder'
  raise UserError(f'{what} {repository}: no such {kind}{hint}')


def _snapshot(what: str, repository: str, file: str | None) -> pathlib.Path:
  """Returns the hub's cached folder of a repository, or one file of it."""
  kind = 'file' if file else 'folder'
  whole = ':'.join(filter(None, (repository, file)))

  def download() -> pathlib.Path:
    intro = f'{what} {whole}: no such {kind}, and'
    with _hub(intro, repository) as api:
      if not file:
        return _download(api, repository)
      name, _, revision = repository.partition('@')
      return pathlib.Path(
        api.hf_hub_download(name, file, revision=revision or None)
      )

  # The first process downloads before the others look.
  distributed.first_does(download, f'{what} {repository}')
  return download()


def is_path(name: str) -> bool:
  """Returns True if a name is a path rather than a single word."""
  return len(pathlib.Path(name).parts) > 1 or pathlib.Path(name).is_dir()


def read_config(what: str, folder: pathlib.Path) -> dict[str, Any]:
  """Returns the values of a folder's config.json, which must be an object."""
  file = folder / CONFIG
  if not file.exists() and (others := sorted(folder.glob('*.gguf'))):
    raise UserError(
      f'{what} {folder}: no {CONFIG}, but GGUF files, which are models by '
      f'their own paths, such as {others[0]}'
    )
  with files.reading(f'{what} {file}'):
    values = files.read_json(file)
    if not isinstance(values, dict):
      raise ValueError('expected a JSON object')
  return values


def fetch(what: str, repository: str, folder) -> None:
  """Downloads a model to a folder and verifies its files.

  An existing folder is verified and kept. A new one appears when all files have
  the hashes that the hub lists; until then they are in the hidden sibling
  `.NAME.fetching`, where the next call resumes an interrupted download. Errors
  begin with `what`.

  Raises:
    UserError: see `find`; or a file is missing or differs from the hub's.
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


def _download(api, repository: str, **options) -> pathlib.Path:
  """Downloads the needed files and returns their folder."""
  name, _, revision = repository.partition('@')
  folder = api.snapshot_download(
    name, revision=revision or None, allow_patterns=list(_NEEDED), **options
  )
  if not any(pathlib.Path(folder).glob('*.safetensors')):
    others = api.list_repo_files(name, revision=revision or None)
    if others := [file for file in others if file.endswith('.gguf')]:
      raise UserError(
        f'{repository}: has no model.safetensors, but GGUF files; name one: '
        f'{repository}:{others[0]}'
      )
    raise UserError(
      f'{repository}: has no model.safetensors, and pickles are not read; a '
      f'pull request of it may have one: {name}@refs/pr/NUMBER'
    )
  return pathlib.Path(folder)


def _wrong(api, repository: str, folder: pathlib.Path) -> list[str]:
  """Returns the needed files that are missing or have other hashes."""
  name, _, revision = repository.partition('@')
  report = api.verify_repo_checksums(
    name, revision=revision or None, local_dir=folder
  )
  paths = [mismatch['path'] for mismatch in report.mismatches]
  return [
    path
    for path in [*paths, *report.missing_paths]
    if any(fnmatch.fnmatch(path, pattern) for pattern in _NEEDED)
  ]


@contextlib.contextmanager
def _hub(intro: str, repository: str) -> Iterator[Any]:
  """Yields huggingface_hub's API, whose errors become one line with advice.

  The line begins with `intro` and the repository's page.
  """
  # The library itself reads the variable only when it is imported.
  endpoint = os.environ.get('HF_ENDPOINT') or 'https://huggingface.co'
  name, _, revision = repository.partition('@')
  page = f'{intro} {endpoint}/{name}'
  try:
    import huggingface_hub.errors
  except ImportError:
    raise UserError(
      f"{page} needs huggingface_hub: pip install 'specsamp[hf]'"
    ) from None
  errors = huggingface_hub.errors
  # A gated repository counts as one that is not found, so it goes first.
  advice = {
    errors.HFValidationError: 'is not a name of a repository',
    errors.GatedRepoError: 'is gated; accept its terms there, then set '
    'HF_TOKEN or run `hf auth login`',
    errors.RepositoryNotFoundError: 'does not exist, or is private: set '
    'HF_TOKEN or run `hf auth login`',
    errors.RevisionNotFoundError: f'has no revision {revision}',
    errors.RemoteEntryNotFoundError: 'has no such file',
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
