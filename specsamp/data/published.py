"""Published sets of prompts: addresses, licences and checked downloads."""

import hashlib
import http.client
import pathlib
import shlex
import urllib.error
import urllib.request
from typing import NamedTuple

from specsamp.errors import UserError
from specsamp.utils import files

FOLDER = '../shared/data'  # the default of `--config.data`
_GITHUB = 'https://raw.githubusercontent.com'
_TIMEOUT_SECONDS = 30


class PublishedSet(NamedTuple):
  """Published file of prompts, stored at `path` in a folder of data.

  It is the file `source` at a commit of the GitHub repository `owner/name`. The
  licence covers the set, but not texts that it quotes. `task` is the name in
  `--config.tasks`, followed by a description.
  """

  path: str
  repository: str
  commit: str
  source: str
  licence: str
  sha256: str
  num_bytes: int
  task: str

  @property
  def name(self) -> str:
    return pathlib.PurePath(self.path).name

  @property
  def url(self) -> str:
    return f'{_GITHUB}/{self.repository}/{self.commit}/{self.source}'


SETS = {
  'humaneval': PublishedSet(
    'humaneval/HumanEval.jsonl.gz',
    'openai/human-eval',
    '6d43fb980f9fee3c892a914eda09951f772ad10d',
    'data/HumanEval.jsonl.gz',
    'MIT',
    'b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef',
    44_877,
    'humaneval: 164 functions, pass@k',
  ),
  'xsum': PublishedSet(
    'xsum/xsum_summarize_DOC.jsonl',
    'yizhongw/self-instruct',
    'bcc81cd86765a7c11224809ffda727de289a6454',
    'data/finetuning/t0_train_50k/data_per_template/xsum_summarize_DOC.jsonl',
    'Apache-2.0, news text',
    'fd90496681cfc08b38662100e06ecf9d11dc82d3ba3a77670721038753bf789c',
    341_938,
    'xsum: 200 articles to summarize',
  ),
  'alpaca': PublishedSet(
    'alpaca/alpaca_data.json',
    'tatsu-lab/stanford_alpaca',
    '761dc5bfbdeeffa89b8bff5d038781a4055f796a',
    'alpaca_data.json',
    'CC-BY-NC-4.0',
    '2eddafc6b977608d778aaab8dfc7e50e547b3af9826dfb9e909d9fc362e4a419',
    22_773_992,
    'alpaca: 52,002 instructions',
  ),
  'wmt': PublishedSet(
    'mcsd/wmt_ende.json',
    'NJUNLP/MCSD',
    'b689112c9a043794c43997e9744d711b36f625eb',
    'dataset/wmt_ende.json',
    'MIT',
    '1ee12edfb38e7fd8f33ec8e91fdd195ca62ce22a545a6962292a817c371b4bc9',
    193_007,
    'wmt: 1,000 sentences to translate',
  ),
  'spec_bench': PublishedSet(
    'spec_bench/question.jsonl',
    'hemingkx/Spec-Bench',
    'fd2c1cd7d2201ef71db4c5f4e455008f017967bf',
    'data/spec_bench/question.jsonl',
    'Apache-2.0',
    '4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04',
    698_768,
    'spec_bench: 480 prompts of six kinds',
  ),
}


def command(name: str, data: str) -> str:
  """Returns the command that fetches a set into a folder of data."""
  option = '' if data in ('', FOLDER) else f' --to={shlex.quote(data)}'
  return f'specsamp fetch {name}{option}'


def fetch(name: str, folder) -> pathlib.Path:
  """Downloads a set to a folder of data, and returns the path of its file.

  Raises:
    UserError: another file has that path, the address cannot be reached, or the
      download is not the published file.
  """
  wanted = SETS[name]
  path = pathlib.Path(folder) / wanted.path
  if path.exists():
    if path.is_file() and sha256_of(path) == wanted.sha256:
      return path
    raise UserError(
      f'{name}: {path} holds something else than {wanted.url} and is not '
      'replaced; name another folder with --to'
    )
  try:
    with urllib.request.urlopen(wanted.url, timeout=_TIMEOUT_SECONDS) as reply:
      content = reply.read()
  except (OSError, http.client.HTTPException) as error:
    if isinstance(error, urllib.error.HTTPError):
      error.close()
    raise UserError(
      f'{name}: {wanted.url}: {error}; fetch it by hand and keep it as {path}'
    ) from None
  digest = hashlib.sha256(content).hexdigest()
  if digest != wanted.sha256:
    raise UserError(
      f'{name}: got {len(content)} bytes of SHA-256 {digest} from '
      f'{wanted.url}, expected {wanted.num_bytes} of {wanted.sha256}; nothing '
      'was written'
    )
  path.parent.mkdir(parents=True, exist_ok=True)
  files.replace(path, content)
  return path


def sha256_of(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
