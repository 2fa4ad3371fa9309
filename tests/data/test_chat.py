"""Chat templates: the text of transformers, and limits of the sandbox."""

import dataclasses
import datetime
import sys

import hf_folders
import pytest
from testing import deadline

from specsamp.data import chat, tokenizer_dir
from specsamp.errors import UserError

_LLAMA = """\
{% if messages[0].role == 'system' %}
  {% set system = '<<SYS>> ' + messages[0].content + ' <</SYS>> ' %}
  {% set messages = messages[1:] %}
{% else %}
  {% set system = '' %}
{% endif %}
{% for message in messages %}
  {% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('user and assistant must take turns') }}
  {% endif %}
  {% if message.role == 'user' %}
{{ bos_token + '[INST] ' + (system if loop.first else '') }}
{{- message.content | trim }} [/INST]
  {%- else %}
 {{ message.content | trim }} {{ eos_token }}
  {%- endif %}
{% endfor %}
"""
_CONTROLS = """\
{%- set seen = namespace(users=0, last='') -%}
{%- for message in messages %}
  {%- if message.role == 'system' %}{% continue %}{% endif %}
  {%- if loop.index > 3 %}{% break %}{% endif %}
  {%- if message.role == 'user' %}
    {%- set seen.users = seen.users + 1 %}
  {%- endif %}
  {%- set seen.last = message.content %}
  {%- generation %}{{ message | tojson }}{% endgeneration %}
{% endfor %}
{{ seen.users }} {{ seen.last }} {{ strftime_now('%Y') }} {{ pad_token }}
{{ {'b': '<é>', 'a': [1]} | tojson(indent=2, sort_keys=True) }}
{%- if tools is not none %}{{ 'tools' }}{% endif -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""
_TURNS = [
  {'role': 'system', 'content': 'Be <brief> & "kind".'},
  {'role': 'user', 'content': '  Grüße, what is 2 < 3? 🎉\n'},
  {'role': 'assistant', 'content': "It's true."},
  {'role': 'user', 'content': '<|turn|> and why?'},
]


@pytest.fixture
def folder(sources, tmp_path):
  return hf_folders.llama3(tmp_path, sources.values())


def _with(folder, template):
  tokenizer = tokenizer_dir.load(folder)
  tokenizer.save(folder)
  (folder / 'chat_template.jinja').write_text(template)
  return tokenizer_dir.load(folder)


@pytest.mark.parity
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('template', [_LLAMA, _CONTROLS])
@pytest.mark.parametrize('turns', [_TURNS, _TURNS[1:]])
def test_texts_and_ids_of_transformers(folder, template, turns):
  import transformers

  tokenizer = _with(folder, template)
  reference = transformers.AutoTokenizer.from_pretrained(folder)
  render = lambda **options: reference.apply_chat_template(
    turns, add_generation_prompt=True, **options
  )
  text = tokenizer.chat(turns)
  assert text == render(tokenize=False) and text
  # A template that writes bos has written the only one.
  ids = render(tokenize=True, return_dict=False)
  assert tokenizer.encode(text, bos=False) == ids


def test_texts(folder):
  """Without transformers to compare with."""
  tokenizer = _with(folder, _LLAMA)
  turn = hf_folders.TURN
  assert tokenizer.chat(_TURNS[1:3]) == (
    f"{turn}[INST] Grüße, what is 2 < 3? 🎉 [/INST] It's true. {turn}"
  )
  ids = tokenizer.encode(tokenizer.chat(_TURNS[1:2]), bos=False)
  assert ids.count(tokenizer.bos_id) == 1 == ids.index(ids[0]) + 1
  lines = _with(folder, _CONTROLS).chat(_TURNS).splitlines()
  assert lines[0].startswith(
    '{"role": "user", "content": "  Grüße, what is 2 <'
  )
  year = datetime.datetime.now().year
  assert lines[0].endswith(f'true."}}1 It\'s true. {year} ')
  assert lines[1:6] == ['{', '  "a": [', '    1', '  ],', '  "b": "<é>"']


def test_places_of_a_template(folder):
  text = lambda: tokenizer_dir.load(folder).chat(_TURNS)
  with pytest.raises(UserError, match='^chat: the tokenizer has no chat templ'):
    text()
  named = {'name': 'default', 'template': 'two'}
  for value, expected in (
    ('one', 'one'),
    ([{'name': 'tools', 'template': 'no'}, named], 'two'),
    ([{'name': 'tools', 'template': 'no'}], None),
  ):
    hf_folders.write(folder, tokenizer_config={'chat_template': value})
    if expected:
      assert text() == expected
    else:
      with pytest.raises(UserError, match='no chat template'):
        text()
  (folder / 'chat_template.jinja').write_text('three')
  assert text() == 'three'


def test_it_is_saved(folder, tmp_path_factory):
  loaded = _with(folder, _LLAMA)
  again = tmp_path_factory.mktemp('again')
  loaded.save(again)
  assert tokenizer_dir.load(again) == loaded
  assert tokenizer_dir.load(again).chat(_TURNS) == loaded.chat(_TURNS)
  assert _with(folder, _CONTROLS) != loaded


@pytest.mark.parametrize(
  ('template', 'message'),
  [
    ("{{ raise_exception('no\nsystem turn') }}", 'no system turn'),
    ('{% for %}', 'Expected'),
    ('{{ missing.attribute }}', 'undefined'),
    ('{{ 1 // 0 }}', 'division'),
    ("{{ ''.__class__.__mro__ }}", 'unsafe'),
    ('{% set _ = messages.append(1) %}', 'unsafe|not safely'),
    (
      '{% for i in range(9999) %}{% for i in range(9999) %}{% for i in range('
      '9999) %}{% endfor %}{% endfor %}{% endfor %}',
      'takes longer than 0.1 s',
    ),
    (
      '{% for i in range(99999) if range(99999) | sum < 0 %}{% endfor %}',
      'takes longer than 0.1 s',
    ),
    (
      '{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}'
      '{% endmacro %}{{ f(60) }}',
      'takes longer than 0.1 s',
    ),
    (
      '{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}',
      'writes more than .* characters',
    ),
    ("{{ ('a' * 10 ** 8) | list | sort | length }}", '100000000 entries'),
    (
      "{% set x = namespace(y='a') %}{% for i in range(99) %}"
      '{% set x.y = x.y + x.y %}{% endfor %}',
      '[0-9]+ entries, at most',
    ),
    ('{{ 10 ** (10 ** 10) }}', 'power: got 1e.10, expected at most'),
    (
      '{% set x = namespace(y=3) %}{% for i in range(99) %}'
      '{% set x.y = x.y * x.y %}{% endfor %}',
      'a number of more than',
    ),
  ],
)
def test_templates_that_fail_or_never_end(template, message, monkeypatch):
  """They run in a thread that is not the main one, as in a server."""
  if 'takes longer' in message:
    monkeypatch.setattr(chat, '_MAX_SECONDS', 0.1)
  turns = [{'role': 'user', 'content': 'x' * 10_000}]
  with pytest.raises(UserError, match=f'^chat template: .*{message}') as error:
    deadline.call(chat.render, template, turns, {})
  assert '\n' not in str(error.value) and len(turns) == 1


def test_loops_and_calls_are_those_of_jinja():
  template = (
    '{% for m in messages %}{{ loop.index }}/{{ loop.length }}'
    '{{ ", " if not loop.last }}{% else %}none{% endfor %}'
    '{% for m in missing %}x{% else %} and none {% endfor %}'
    '{% for k, v in {"a": 2 ** 3}.items() %}{{ k * v }}{% endfor %}'
    '{{ dict(self=1, context=2, function=3).values() | sum }}'
  )
  text = '1/4, 2/4, 3/4, 4/4 and none aaaaaaaa6'
  assert chat.render(template, _TURNS, {}) == text


def test_without_jinja(monkeypatch):
  monkeypatch.setitem(sys.modules, 'jinja2', None)
  with pytest.raises(UserError, match=r"pip install 'specsamp\[hf\]'"):
    chat.render('x', [], {})


def test_a_template_of_a_sentencepiece_model(tokenizer, tmp_path):
  """The template's bos is one token, although no text has it otherwise."""
  tokenizer.save(tmp_path)
  hf_folders.write(tmp_path, tokenizer_config={'chat_template': _LLAMA})
  loaded = tokenizer_dir.load(tmp_path)
  assert loaded != tokenizer
  ids = loaded.encode(loaded.chat(_TURNS[1:]), bos=False)
  assert ids.count(loaded.bos_id) == 2 and ids.count(loaded.eos_id) == 1
  assert ids[0] == loaded.bos_id != ids[1]
  assert loaded.decode(ids).startswith('[INST] Grüße')
  bare = dataclasses.replace(loaded.files, parses=False)
  assert loaded.bos_id not in type(loaded)(loaded.proto, bare).encode('<s>')[1:]
