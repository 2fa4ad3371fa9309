"""Special tokens and a chat template, in files next to a tokenizer's pieces."""

import dataclasses
import json
import pathlib
from typing import Any

from specsamp.errors import UserError
from specsamp.utils import files

_CONFIG, _GENERATION = 'tokenizer_config.json', 'generation_config.json'
_EOS = 'eos_token_id'


@dataclasses.dataclass(frozen=True)
class Files:
  """Special tokens, chat template and options of a tokenizer.

  Attributes:
    named: special tokens by role, such as eos_token.
    extra: further special tokens.
    added: id -> a token that may not be among the pieces: `content`, `special`,
      and flags of how it is found in a text.
    stop_ids: ids that end a completion.
    chat_template: Jinja source, or ''.
    adds_bos: True if a text gets bos, unless the pieces' file decides that.
    legacy: True if a dummy space follows a special token in a text.
    parses: True if special tokens in a text are parsed.
    raw: tokenizer_config.json and `model_type`, for options of one kind of
      tokenizer; they are not saved.
  """

  named: dict[str, str] = dataclasses.field(default_factory=dict)
  extra: tuple[str, ...] = ()
  added: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
  stop_ids: tuple[int, ...] = ()
  chat_template: str = ''
  adds_bos: bool = True
  legacy: bool = False
  parses: bool = False
  raw: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)

  @property
  def special(self) -> list[str]:
    """All special tokens without duplicates; some may not be pieces."""
    added = [t['content'] for t in self.added.values() if t.get('special')]
    return list(dict.fromkeys([*self.named.values(), *self.extra, *added]))

  def naming(self, **tokens: str | None) -> 'Files':
    """Returns a copy in which missing roles get these tokens; skips None."""
    tokens = {name: t for name, t in tokens.items() if t is not None}
    return dataclasses.replace(self, named=tokens | self.named)

  def to_json(self) -> bytes:
    values = dataclasses.asdict(dataclasses.replace(self, raw={}))
    return json.dumps(values, sort_keys=True).encode()

  def write(self, folder, tokenizer_class: str) -> None:
    """Writes the files that `read` reads, without `raw`.

    `tokenizer_class` is the class of transformers that will read them.
    """
    config = {
      'tokenizer_class': tokenizer_class,
      **self.named,
      'additional_special_tokens': list(self.extra),
      'added_tokens_decoder': {str(i): t for i, t in self.added.items()},
      'add_bos_token': self.adds_bos,
      'legacy': self.legacy,
      'clean_up_tokenization_spaces': False,
    }
    if self.chat_template:
      config['chat_template'] = self.chat_template
    if self.parses:
      _write(pathlib.Path(folder) / _CONFIG, config)
    if self.stop_ids:
      ids = {_EOS: list(self.stop_ids)}
      _write(pathlib.Path(folder) / _GENERATION, ids)


def read(folder) -> Files:
  """Reads the files of a folder; any of them may be missing.

  Raises:
    UserError: a file is invalid; the message begins with its name.
  """
  folder = pathlib.Path(folder)
  raw = _read_object(folder / _CONFIG)
  values, added = raw, raw.get('added_tokens_decoder')
  if added is None:  # files older than this key
    values = raw | _read_object(folder / 'special_tokens_map.json')
  with files.reading(_CONFIG):
    named, extra = _named(values), _extra(values)
  if added is None:
    special = {*named.values(), *extra}
    added = {
      i: {
        'content': token,
        'special': token in special,
        'normalized': token not in special,
      }
      for token, i in _read_object(folder / 'added_tokens.json').items()
    }
  with files.reading(f'{_CONFIG}: added_tokens_decoder'):
    added = {int(i): dict(token) for i, token in added.items()}
  generation = _read_object(folder / _GENERATION)
  model = _read_object(folder / 'config.json')
  template = _template(folder, raw.get('chat_template'))
  return Files(
    named=named,
    extra=extra,
    added=dict(sorted(added.items())),
    stop_ids=_ids(generation.get(_EOS, model.get(_EOS))),
    chat_template=template,
    adds_bos=bool(raw.get('add_bos_token', True)),
    legacy=bool(raw.get('legacy')),
    parses=bool(values or added or template),
    raw=raw | {'model_type': model.get('model_type')},
  )


def _write(path: pathlib.Path, values: dict[str, Any]) -> None:
  text = json.dumps(values, indent=2, ensure_ascii=False)
  path.write_text(text + '\n', encoding='utf-8')


def _read_object(path: pathlib.Path) -> dict[str, Any]:
  """Returns a JSON object, which is empty if the file does not exist."""
  if not path.exists():
    return {}
  with files.reading(path.name):
    values = files.read_json(path)
    if not isinstance(values, dict):
      raise ValueError(f'got a {type(values).__name__}, expected a JSON object')
  return values


def _content(token) -> str:
  """Returns the text of a token, which may be an object with flags."""
  return token['content'] if isinstance(token, dict) else token


def _named(values: dict[str, Any]) -> dict[str, str]:
  named = {
    name: _content(token)
    for name, token in values.items()
    # `add_bos_token` is a flag; null and '' name no token.
    if name.endswith('_token') and not isinstance(token, bool) and token
  }
  return {name: token for name, token in named.items() if token}


def _extra(values: dict[str, Any]) -> tuple[str, ...]:
  extra = []
  for name in ('additional_special_tokens', 'extra_special_tokens'):
    tokens = values.get(name) or []
    extra += tokens.values() if isinstance(tokens, dict) else tokens
  return tuple(dict.fromkeys(map(_content, extra)))


def _ids(value) -> tuple[int, ...]:
  ids = value if isinstance(value, list) else [value]
  if ids == [None]:
    return ()
  if not all(type(i) is int and 0 <= i < 2**31 for i in ids):
    raise UserError(f'{_EOS}: got {value!r}, expected an id or a list of ids')
  return tuple(ids)


def _template(folder: pathlib.Path, value) -> str:
  """Returns the template from its file, or the value named `default`."""
  path = folder / 'chat_template.jinja'
  if path.is_file():
    return path.read_text(encoding='utf-8')
  if isinstance(value, list):
    named = {entry['name']: entry['template'] for entry in value}
    value = named.get('default')
  return value or ''
