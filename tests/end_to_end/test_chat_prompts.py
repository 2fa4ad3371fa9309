"""User-defined prompts as turns of a conversation."""

import json
import pathlib
import runpy

import pytest

from specsamp.checkpoints import model_dir
from specsamp.data.tokenizer_files import Files
from specsamp.data.tokenizers import SentencePiece
from specsamp.errors import UserError
from specsamp.experiments import decode
from specsamp.language_model import LanguageModel

_CONFIG = pathlib.Path(__file__).parents[2] / 'configs' / 'quickstart.py'
_TEMPLATE = (
  '{{ bos_token }}{% for m in messages %}<{{ m.role }}> {{ m.content }}'
  '{% endfor %}{% if add_generation_prompt %} <assistant>{% endif %}'
)


@pytest.fixture
def values(folders, tokenizer, tmp_path):
  """Values of a config whose target has a template."""
  target = model_dir.load(folders / 'target')
  files = Files(chat_template=_TEMPLATE, parses=True)
  tokens = SentencePiece(tokenizer.proto, files)
  target = LanguageModel(target.transformer, target.params, tokens)
  model_dir.save(target, tmp_path / 'target')
  assert model_dir.load(tmp_path / 'target').tokenizer == tokens
  folder = str(tmp_path / 'target')
  config = runpy.run_path(str(_CONFIG))['get_config']('smoke')
  return config.to_dict() | dict(
    target=folder, draft=folder, chat=True, max_new_tokens=3
  )


def test_a_prompt_is_a_turn(values, tmp_path):
  job = decode.prepare(values, prompt='x = 1')
  assert job.prompts[0].text == '<s><user> x = 1 <assistant>'
  tokens = decode._tokens(job.target, job.prompts[0], job.config)
  assert tokens.count(job.target.tokenizer.bos_id) == 1  # none is added
  assert tokens[0] == job.target.tokenizer.bos_id
  job.run(tmp_path)
  line = json.loads((tmp_path / 'metrics.jsonl').read_text())
  assert line['prompt'] == job.prompts[0].text
  plain = decode.prepare(values | dict(chat=False), prompt='x = 1')
  assert plain.prompts[0].text == 'x = 1'


def test_chat_needs_prompts_and_a_template(values, folders):
  with pytest.raises(UserError, match='^chat is for your own --prompt'):
    decode.prepare(values)
  without = values | dict(target=str(folders / 'target'), draft='')
  without['draft'] = without['target']
  with pytest.raises(UserError, match='no chat template'):
    decode.prepare(without, prompt='x')
