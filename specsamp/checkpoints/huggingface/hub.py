"""Repositories of the Hugging Face hub: as folders, or fetched into one.

The hub is that of `HF_ENDPOINT`, or huggingface.co; the cache, the token and
`HF_HUB_OFFLINE` are those of huggingface_hub.
"""

import contextlib
import fnmatch
import hashlib
import itertools
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

from specsamp.data.published import sha256_of
from specsamp.errors import UserError
from specsamp.utils import distributed, locks

# What a folder of a model or drafter is read from, and the terms it is under.
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
_WEIGHTS = '*.safetensors'
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
  """Reads `org/name` or `org/name@revision`; None for what is neither."""
  found = _NAME.fullmatch(os.fspath(name))
  return Repository(**found.groupdict()) if found else None


def snapshot(what: str, repository: Repository) -> pathlib.Path:
  """The folder of the hub's cache that holds a repository.

  What is not in it is downloaded; without a network what is in it serves. Of
  several processes all must call this, and the first one downloads before the
  others look.

  Args:
    what: the repository is to hold, for errors.
    repository: which.

  Raises:
    UserError: the hub does not give it, or it holds no safetensors; or
      huggingface_hub is not installed.
  """
  found = []

  def download() -> None:
    with _asking(
      f'{what} {repository}: no such folder, and', repository
    ) as hub:
      folder = pathlib.Path(
        hub.snapshot_download(
          repository.name,
          revision=repository.revision,
          allow_patterns=_NEEDED,
          endpoint=_endpoint(),
        )
      )
      if not any(folder.glob(_WEIGHTS)):
        raise _NoWeights
    found.append(folder)

  distributed.first_does(download, f'{what} {repository}')
  if not found:
    download()
  return found[0]


def fetch(what: str, repository: Repository, folder) -> None:
  """Downloads a model into a folder, and checks what came.

  Files that are there already and are the hub's are kept. The others are
  gathered in a hidden folder beside it, and moved when all of them have the
  sizes and hashes that the hub tells: what was cut off goes on when this is
  called again, and a folder that is there is whole.

  Args:
    what: the folder is, for errors.
    repository: which.
    folder: to write to.

  Raises:
    UserError: as `snapshot`; a file that is there is another than the hub's; or
      what came is not what the hub tells.
  """
  folder = pathlib.Path(folder)
  with _asking(f'{what}:', repository) as hub:
    info = hub.HfApi(endpoint=_endpoint()).model_info(
      repository.name, revision=repository.revision, files_metadata=True
    )
    wanted = {
      file.rfilename: file
      for file in info.siblings
      if any(fnmatch.fnmatch(file.rfilename, each) for each in _NEEDED)
    }
    if not fnmatch.filter(wanted, _WEIGHTS):
      raise _NoWeights
  for name in [name for name in wanted if (folder / name).exists()]:
    if wrong := _difference(folder / name, wanted.pop(name)):
      raise UserError(
        f'{what}: {folder / name} is not the one of {repository} ({wrong}) and '
        'is not replaced; name another folder with --to'
      )
  if wanted:
    _gather(what, repository._replace(revision=info.sha), wanted, folder)


def _gather(
  what: str,
  repository: Repository,
  wanted: dict[str, Any],
  folder: pathlib.Path,
) -> None:
  """Downloads files beside a folder, and moves them there when all are right.

  Args:
    what: as of `fetch`.
    repository: at one commit.
    wanted: name -> what the hub tells of it.
    folder: as of `fetch`.
  """
  partial = folder.with_name(f'.{folder.name}.fetching')
  with locks.lock(partial):
    try:
      with _asking(f'{what}:', repository) as hub:
        hub.snapshot_download(
          repository.name,
          revision=repository.revision,
          allow_patterns=list(wanted),
          endpoint=_endpoint(),
          local_dir=partial,
        )
      for name, file in wanted.items():
        if wrong := _difference(partial / name, file):
          (partial / name).unlink(missing_ok=True)
          raise UserError(
            f'{what}: {name} came otherwise than {repository.name} has it: '
            f'{wrong}; the same command fetches it anew'
          )
      # Last what makes it a model's folder.
      for name in sorted(wanted, key=lambda name: name == 'config.json'):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).rename(folder / name)
    finally:
      begun = itertools.chain(
        (partial / name for name in wanted), partial.rglob('*.incomplete')
      )
      if not any(each.exists() for each in begun):
        shutil.rmtree(partial)


def _difference(path: pathlib.Path, file: Any) -> str:
  """How a file differs from what the hub tells of it; '' if it does not."""
  if not path.is_file():
    return 'it is no file'
  size = path.stat().st_size
  if size != file.size:
    return f'got {size} bytes, expected {file.size}'
  if file.lfs:
    got, expected = sha256_of(path), file.lfs.sha256
  else:  # as git names what it holds
    content = path.read_bytes()
    got = hashlib.sha1(b'blob %d\0' % len(content) + content).hexdigest()
    expected = file.blob_id
  return '' if got == expected else f'got hash {got}, expected {expected}'


def _endpoint() -> str:
  """The library reads the variable when it is imported, and not again."""
  return os.environ.get('HF_ENDPOINT') or 'https://huggingface.co'


class _NoWeights(Exception):
  """A repository that holds no safetensors."""


@contextlib.contextmanager
def _asking(intro: str, repository: Repository) -> Iterator[Any]:
  """The library, whose errors become a line that tells what to do.

  Args:
    intro: the line's beginning; the repository's page is what follows.
    repository: which is asked for.
  """
  tell = lambda rest: UserError(
    f'{intro} {_endpoint()}/{repository.name} {rest}'
  )
  try:
    import huggingface_hub.errors
  except ImportError:
    raise tell(
      "is reached with huggingface_hub: pip install 'specsamp[hf]'"
    ) from None
  errors = huggingface_hub.errors
  try:
    yield huggingface_hub
  except _NoWeights:
    raise tell(
      'has no model.safetensors, and pickles are not read; a pull request of '
      f'it may have one: {repository.name}@refs/pr/NUMBER'
    ) from None
  except errors.HFValidationError:
    raise tell('is no name of a repository') from None
  except errors.GatedRepoError:
    raise tell(
      'is gated; accept its terms there, then set HF_TOKEN or run `hf auth '
      'login`'
    ) from None
  except errors.RepositoryNotFoundError:
    raise tell(
      'is not there, or private, for which set HF_TOKEN or run `hf auth login`'
    ) from None
  except errors.RevisionNotFoundError:
    raise tell(f'has no revision {repository.revision}') from None
  # The last is of whichever library it speaks HTTP with.
  except (errors.HfHubHTTPError, OSError, errors.HTTPError) as error:
    if getattr(error, 'errno', None):  # a full disk, a folder in the way
      raise
    for each in (error, error.__cause__):
      if (response := getattr(each, 'response', None)) is not None:
        raise tell(f'answers {response.status_code}') from None
    raise tell('cannot be reached; where it can, fetch it by hand') from None
