"""Chat templates: the text of transformers, and limits of the sandbox."""

import dataclasses
import sys

import hf_folders
import pytest
from testing.chat_templates import NO_THOUGHTS, QWEN3

from specsamp.data import chat, hf_tokenizers
from specsamp.data.tokenizer_files import Files
from specsamp.data.tokenizers import SentencePiece
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
  tokenizer = hf_tokenizers.load(folder)
  tokenizer.save(folder)
  (folder / 'chat_template.jinja').write_text(template)
  return hf_tokenizers.load(folder)


@pytest.mark.parity
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(
  ('template', 'variables'),
  [
    (_LLAMA, {}),
    (_CONTROLS, {}),
    (QWEN3, {}),
    (QWEN3, {'enable_thinking': False}),
    (QWEN3, {'enable_thinking': True, 'unheard_of': [1]}),
  ],
)
@pytest.mark.parametrize('turns', [_TURNS, _TURNS[1:]])
def test_texts_and_ids_of_transformers(folder, template, variables, turns):
  import transformers

  tokenizer = _with(folder, template)
  reference = transformers.AutoTokenizer.from_pretrained(folder)
  render = lambda **options: reference.apply_chat_template(
    turns, add_generation_prompt=True, **variables, **options
  )
  text = tokenizer.chat(turns, **variables)
  assert text == render(tokenize=False) and text
  # A template that writes bos has written the only one.
  ids = render(tokenize=True, return_dict=False)
  assert tokenizer.encode(text, bos=False) == ids


def test_variables(folder):
  tokenizer = _with(folder, QWEN3)
  text = tokenizer.chat(_TURNS)
  assert tokenizer.chat(_TURNS, enable_thinking=True) == text
  # Names of the function's own arguments are variables like others.
  assert tokenizer.chat(_TURNS, self=1, template='x', named=None) == text
  without = tokenizer.chat(_TURNS, enable_thinking=False)
  assert without == text + NO_THOUGHTS


@pytest.mark.parametrize(
  'name',
  [
    'messages', 'tools', 'documents', 'add_generation_prompt', 'bos_token',
    'pad_token', 'chat_template', 'continue_final_message', 'tokenize',
  ],
)  # fmt: skip
def test_reserved_variables(folder, name):
  tokenizer = _with(folder, QWEN3)
  with pytest.raises(UserError, match=f"^chat template: '{name}' is a reserv"):
    tokenizer.chat(_TURNS, **{name: None})


@pytest.mark.parametrize('kind', ['tokenizer.json', 'tokenizer.model'])
def test_one_bos(folder, tokenizer, kind):
  """A template writes it, and the tokenizer adds it to other texts."""
  if kind == 'tokenizer.json':
    loaded = _with(folder, QWEN3)
  else:
    files = Files(chat_template=QWEN3, parses=True)
    loaded = SentencePiece(tokenizer.proto, files)
  text = loaded.chat(_TURNS[1:2])
  for ids in (loaded.encode(text, bos=False), loaded.encode('x = 1')):
    assert ids.count(loaded.bos_id) == 1 and ids[0] == loaded.bos_id
  assert loaded.encode(text).count(loaded.bos_id) == 2


def test_places_of_a_template(folder):
  text = lambda: hf_tokenizers.load(folder).chat(_TURNS)
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
  assert hf_tokenizers.load(again) == loaded
  assert hf_tokenizers.load(again).chat(_TURNS) == loaded.chat(_TURNS)


@pytest.mark.parametrize(
  ('template', 'message'),
  [
    ("{{ raise_exception('no\nsystem turn') }}", 'no system turn'),
    ('{% for %}', 'Expected'),
    ('{{ missing.attribute }}', 'undefined'),
    ("{{ ''.__class__.__mro__ }}", 'unsafe'),
    ('{% set _ = messages.append(1) %}', 'unsafe|not safely'),
  ],
)
def test_templates_that_fail(template, message):
  with pytest.raises(UserError, match=f'^chat template: .*{message}') as error:
    chat.render(template, _TURNS, {})
  assert '\n' not in str(error.value)


def test_without_jinja(monkeypatch):
  monkeypatch.setitem(sys.modules, 'jinja2', None)
  with pytest.raises(UserError, match=r"pip install 'specsamp\[hf\]'"):
    chat.render('x', [], {})


def test_a_template_of_a_sentencepiece_model(tokenizer, tmp_path):
  """The template's bos is one token, although no text has it otherwise."""
  tokenizer.save(tmp_path)
  hf_folders.write(tmp_path, tokenizer_config={'chat_template': _LLAMA})
  loaded = hf_tokenizers.load(tmp_path)
  assert loaded != tokenizer
  ids = loaded.encode(loaded.chat(_TURNS[1:]), bos=False)
  assert ids.count(loaded.bos_id) == 2 and ids.count(loaded.eos_id) == 1
  assert ids[0] == loaded.bos_id != ids[1]
  assert loaded.decode(ids).startswith('[INST] Grüße')
  bare = dataclasses.replace(loaded.files, parses=False)
  assert loaded.bos_id not in type(loaded)(loaded.proto, bare).encode('<s>')[1:]
