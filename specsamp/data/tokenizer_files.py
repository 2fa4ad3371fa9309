"""The files beside a tokenizer's pieces, as model folders have them."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable
from typing import Any

from specsamp.errors import UserError
from specsamp.utils import files

_CONFIG, _GENERATION = 'tokenizer_config.json', 'generation_config.json'
_EOS = 'eos_token_id'


@dataclasses.dataclass(frozen=True)
class Files:
  """What they hold.

  Attributes:
    named: texts of special tokens by what they are for, such as eos_token.
    extra: further special tokens.
    added: id -> a token that may not be among the pieces: its `content`,
      whether it is `special`, and how it is found in a text.
    stop_ids: all that the model ends a text with.
    chat_template: '' is none.
    adds_bos: whether a text gets bos, where the pieces' file doesn't tell.
    legacy: whether a dummy space follows a special token in a text.
    parses: whether a text may hold special tokens: there are such files.
    raw: tokenizer_config.json and the `model_type`, for what concerns one
      kind of tokenizer; not saved.
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
    """Every special token once; some may not be pieces."""
    added = [t['content'] for t in self.added.values() if t.get('special')]
    return list(dict.fromkeys([*self.named.values(), *self.extra, *added]))

  def naming(self, **tokens: str | None) -> 'Files':
    """With names for tokens that have none yet; None names nothing."""
    tokens = {name: t for name, t in tokens.items() if t is not None}
    return dataclasses.replace(self, named=tokens | self.named)

  def to_json(self) -> bytes:
    values = dataclasses.asdict(dataclasses.replace(self, raw={}))
    return json.dumps(values, sort_keys=True).encode()

  def write(self, folder, tokenizer_class: str) -> None:
    """Writes what `read` reads back, but for `raw`.

    Args:
      folder: where.
      tokenizer_class: the class of transformers that is to read it.
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
  """Reads what a folder has of them.

  Raises:
    UserError: a file that is there is not what it should be.
  """
  folder = pathlib.Path(folder)
  raw = _object(folder / _CONFIG)
  values = dict(raw)
  added = raw.get('added_tokens_decoder')
  if added is None:  # files of before there was such a key
    values |= _object(folder / 'special_tokens_map.json')
    added = _legacy_added(_object(folder / 'added_tokens.json'), values)
  where = folder / _CONFIG
  generation = _object(folder / _GENERATION)
  model = _object(folder / 'config.json')
  template = _template(folder, raw.get('chat_template'))
  return Files(
    named=_named(where, values),
    extra=_extra(where, values),
    added=_added(where, added),
    stop_ids=_ids(folder, generation.get(_EOS, model.get(_EOS))),
    chat_template=template,
    adds_bos=bool(raw.get('add_bos_token', True)),
    legacy=bool(raw.get('legacy')),
    parses=bool(values or added or template),
    raw=raw | {'model_type': model.get('model_type')},
  )


def _write(path: pathlib.Path, values: dict[str, Any]) -> None:
  text = json.dumps(values, indent=2, ensure_ascii=False)
  path.write_text(text + '\n', encoding='utf-8')


def _object(path: pathlib.Path) -> dict[str, Any]:
  """A JSON object; an empty one if there is no such file."""
  try:
    found = files.read_json(path)
  except FileNotFoundError:
    return {}
  except OSError as error:
    raise UserError(f'{path}: {error.strerror}') from None
  except ValueError as error:  # no JSON or no UTF-8
    raise UserError(f'{path}: not JSON: {error}') from None
  if not isinstance(found, dict):
    raise UserError(
      f'{path}: got a {type(found).__name__}, expected a JSON object'
    )
  return found


def _content(where: pathlib.Path, name: str, token) -> str:
  """The text of a token, which may stand with its flags or without."""
  text = token.get('content') if isinstance(token, dict) else token
  if not isinstance(text, str):
    raise UserError(f'{where}: {name}: got {token!r}, expected a token')
  return text


def _named(where: pathlib.Path, values: dict[str, Any]) -> dict[str, str]:
  found = {
    name: _content(where, name, token)
    for name, token in values.items()
    # `add_bos_token` is no token, and null or '' names none.
    if name.endswith('_token') and not isinstance(token, bool) and token
  }
  return {name: token for name, token in found.items() if token}


def _extra(where: pathlib.Path, values: dict[str, Any]) -> tuple[str, ...]:
  found = []
  for name in ('additional_special_tokens', 'extra_special_tokens'):
    tokens = values.get(name) or []
    if isinstance(tokens, dict):
      tokens = list(tokens.values())
    if not isinstance(tokens, list):
      raise UserError(f'{where}: {name}: got {tokens!r}, expected a list')
    found += [_content(where, name, token) for token in tokens]
  return tuple(dict.fromkeys(found))


def _added(where: pathlib.Path, added) -> dict[int, dict[str, Any]]:
  try:
    found = {int(i): dict(token) for i, token in added.items()}
  except (AttributeError, TypeError, ValueError):
    raise UserError(
      f'{where}: added_tokens_decoder: expected tokens by id'
    ) from None
  for token in found.values():
    _content(where, 'added_tokens_decoder', token)
  return dict(sorted(found.items()))


def _legacy_added(ids: dict[str, Any], values: dict[str, Any]):
  """added_tokens.json, id by token, as an added_tokens_decoder."""
  special = [
    token.get('content') if isinstance(token, dict) else token
    for token in _flat(values.values())
  ]
  return {
    i: {
      'content': token,
      'special': token in special,
      'normalized': token not in special,
    }
    for token, i in ids.items()
  }


def _flat(values: Iterable) -> list:
  return [
    token
    for value in values
    for token in (value if isinstance(value, list) else [value])
  ]


def _ids(folder: pathlib.Path, value) -> tuple[int, ...]:
  ids = value if isinstance(value, list) else [value]
  if ids == [None]:
    return ()
  if not all(type(i) is int and 0 <= i < 2**31 for i in ids):
    raise UserError(f'{_EOS}: got {value!r}, expected an id or a list of them')
  return tuple(ids)


def _template(folder: pathlib.Path, value) -> str:
  """The template: that of its own file, or one by the name of `default`."""
  path = folder / 'chat_template.jinja'
  if path.is_file():
    try:
      return path.read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
      raise UserError(f'{path}: {error}') from None
  if isinstance(value, list):
    try:
      value = {each['name']: each['template'] for each in value}.get('default')
    except (TypeError, KeyError):
      value = value[0]
  if not isinstance(value, str | None):
    raise UserError(
      f'{folder / _CONFIG}: chat_template: got a {type(value).__name__}, '
      'expected a text or a list of named ones'
    )
  return value or ''
