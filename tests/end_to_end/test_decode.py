"""`launch/decode.py`: comparisons, prompts of a user, and chat templates."""

import json
import runpy

import pytest
from testing import chat_templates
from testing.launching import run_here

from specsamp.checkpoints import model_dir
from specsamp.data.tokenizer_files import Files
from specsamp.data.tokenizers import SentencePiece
from specsamp.errors import UserError
from specsamp.experiments import compare, decode
from specsamp.language_model import LanguageModel

_CONFIG = 'configs/quickstart.py'
_RUN_KEYS = {
  'method', 'task', 'temperature', 'draft_len', 'tokens', 'seconds',
  'ms_per_token', 'tokens_per_second', 'speedup', 'block_efficiency',
  'acceptance_rate', 'acceptance_by_position', 'round_ms', 'p50_ms', 'p90_ms',
  'p99_ms', 'lossless',
}  # fmt: skip
_TURNS = [{'role': 'user', 'content': 'x = 1'}]
_NO_THINKING = {'enable_thinking': False}


@pytest.fixture
def run(folders, tmp_path):
  """Returns run(*flags), which returns the output and the lines of the log."""

  def run(*flags):
    ended = run_here(
      'decode',
      f'--config={_CONFIG}:smoke',
      f'--workdir={tmp_path}/run',
      f'--config.target={folders}/target',
      f'--config.draft={folders}/draft',
      '--config.max_prompt_tokens=40',
      *flags,
    )
    assert ended.code == 0, ended.err
    lines = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
    return ended.out, [json.loads(line) for line in lines]

  return run


def test_comparison(run, tmp_path):
  out, lines = run('--config.adaptive=true')
  assert '«' in out and 'speedup' in out
  assert sorted(path.name for path in (tmp_path / 'run').iterdir()) == [
    'by_draft_length.png',
    'config.json',
    'metrics.jsonl',
    'report.md',
    'summary.json',
  ]
  summary = json.loads((tmp_path / 'run/summary.json').read_text())
  assert summary['device'] and summary['versions']['jax']
  runs = summary['runs']
  assert [(r['temperature'], r['branching']) for r in runs] == [
    (t, draft) for t in (0, 1) for draft in ('', 'γ=2', 'γ=4', 'γ of 0, 2, 4')
  ]
  for each in runs:
    assert each.keys() >= _RUN_KEYS
    assert each['tokens'] == 16 * each['sequences']
    assert len(each['acceptance_by_position']) == each['draft_len']
  # One of two prompts is for every draft length, the other for the fastest.
  for temperature in (0, 1):
    baseline, *drafts = (
      r['sequences'] for r in runs if r['temperature'] == temperature
    )
    assert baseline == 2 and sorted(drafts) == [1, 1, 2]
  assert len(lines) == sum(each['sequences'] for each in runs)
  for line in lines:
    if line['branching'] == 'γ of 0, 2, 4':
      assert len(line['num_drafted_per_round']) == line['rounds']
      assert set(line['num_drafted_per_round']) <= {0, 1, 2, 3, 4}
  # Greedy text does not depend on the draft.
  greedy = {
    (line['prompt'], line['texts'][0])
    for line in lines
    if line['temperature'] == 0
  }
  assert len(greedy) == len({line['prompt'] for line in lines})


def test_adaptive_tree_sizes(run):
  _, lines = run(
    '--config.adaptive=true',
    '--config.dynamic_tree=(8, 3, 3)',
    '--config.draft_lens=(2,)',
    '--config.temperatures=(0.0,)',
  )
  assert {line['branching'] for line in lines} == {
    '',
    'γ=2',
    'dynamic, 8 nodes, depth 3',
    'dynamic of 2, 4, 8 nodes, depth 3',
  }
  texts = {(line['prompt'], line['texts'][0]) for line in lines}
  assert len(texts) == len({line['prompt'] for line in lines})


def test_plain_decoding_alone(run, folders):
  """Decodes a target that no draft fits, with a verifier of trees."""
  out, lines = run(
    f'--config.target={folders}/turned',
    '--config.draft=',
    '--config.drafter=none',
    '--config.verifier=top_plus_one',
  )
  assert {line['method'] for line in lines} == {'autoregressive'}
  assert 'between marks' not in out


def test_a_draft_with_another_tokenizer(run, folders):
  _, lines = run(
    f'--config.target={folders}/target', f'--config.draft={folders}/small'
  )
  greedy = [line for line in lines if line['temperature'] == 0]
  assert {line['branching'] for line in greedy} > {''}
  texts = {(line['prompt'], line['texts'][0]) for line in greedy}
  assert len(texts) == len({line['prompt'] for line in greedy})


def test_prompts_of_a_user(run, tmp_path):
  prompts = tmp_path / 'prompts.txt'
  prompts.write_text('x = x = x = x =\n\nimport \n')
  out, lines = run(
    f'--prompts_file={prompts}',
    '--config.drafter=lookahead',
    '--config.lookup.window=3',
    '--speedup',
  )
  assert 'x = x = x = x =' in out and '=== 2 prompts: 32 tokens' in out
  for line in lines:
    assert line['tokens'] == 16 and line['lossless']
    assert line['verifier'] == 'naive' and line['speedup'] > 0


@pytest.fixture
def chat(folders, tokenizer, tmp_path):
  """Returns the values of a config whose target has a template."""
  target = model_dir.load(folders / 'target')
  files = Files(chat_template=chat_templates.QWEN3, parses=True)
  tokens = SentencePiece(tokenizer.proto, files)
  target = LanguageModel(target.transformer, target.params, tokens)
  model_dir.save(target, tmp_path / 'target')
  folder = str(tmp_path / 'target')
  values = runpy.run_path(_CONFIG)['get_config']('smoke').to_dict()
  return values | dict(target=folder, draft=folder, chat=True, max_new_tokens=3)


def test_a_prompt_is_a_turn(chat, tmp_path):
  job = decode.prepare(chat, prompt='x = 1')
  assert job.prompts[0].text == '<s><user>x = 1\n<assistant>'
  tokens = job.tokens(job.prompts[0])
  assert tokens.count(job.target.tokenizer.bos_id) == 1  # none is added
  assert tokens[0] == job.target.tokenizer.bos_id
  job.run(tmp_path)
  line = json.loads((tmp_path / 'metrics.jsonl').read_text())
  assert line['prompt'] == job.prompts[0].text
  # A prompt without a template gets the only one from the tokenizer.
  plain = decode.prepare(chat | dict(chat=False), prompt='x = 1')
  tokens = plain.tokens(plain.prompts[0])
  assert tokens.count(job.target.tokenizer.bos_id) == 1


@pytest.mark.parity
def test_variables_of_the_template(chat, run):
  _, (line,) = run(
    f'--config.target={chat["target"]}',
    f'--config.draft={chat["draft"]}',
    '--config.chat=true',
    '--config.chat_template_kwargs.enable_thinking=false',
    '--config.chat_template_kwargs.unheard_of=high',
    '--prompt=x = 1',
  )
  wanted = chat_templates.of_transformers(_TURNS, '<s>', **_NO_THINKING)
  assert line['prompt'] == wanted
  assert wanted.endswith(chat_templates.NO_THOUGHTS)


def test_a_comparison_of_turns(chat):
  config = 'configs/papers/mcsd/figure4.py'
  values = runpy.run_path(config)['get_config']('smoke').to_dict()
  values |= {name: chat[name] for name in ('target', 'draft', 'chat')}
  values |= dict(max_prompt_tokens=48, chat_template_kwargs=_NO_THINKING)
  job = compare.prepare(values)
  text = job.target.tokenizer.decode(job.first)
  assert text.endswith(f'\n<assistant>{chat_templates.NO_THOUGHTS}')


def test_chat_needs_prompts_and_a_template(chat, folders):
  with pytest.raises(UserError, match='^chat is for your own --prompt'):
    decode.prepare(chat)
  folder = str(folders / 'target')
  with pytest.raises(UserError, match='no chat template'):
    decode.prepare(chat | dict(target=folder, draft=folder), prompt='x')
