"""Tasks: how files are read, prompts written and answers scored."""

import json

import pytest
from testing.chat_templates import NO_THOUGHTS, QWEN3

from specsamp.data import corpora
from specsamp.data.tokenizer_files import Files
from specsamp.data.tokenizers import SentencePiece
from specsamp.errors import UserError
from specsamp.evaluation import tasks
from specsamp.evaluation.tasks import published_sets, scorers
from specsamp.evaluation.tasks.task import Question, last, read_lines, tokens_of


def _load(name, tokenizer, data, count=8, max_tokens=64):
  return tasks.load(name, tokenizer, count, max_tokens, str(data))


@pytest.mark.parametrize(
  ('name', 'found'),
  [
    ('spec_bench', dict.fromkeys(published_sets.SPEC_BENCH_CATEGORIES, 2)
     | {'mt_bench': 4}),
    ('spec_bench/qa', {'qa': 2}),
    ('humaneval', {'humaneval': 2}),
    ('xsum', {'xsum': 3}),
    ('alpaca', {'alpaca': 2}),
    ('wmt', {'wmt': 2}),
  ],
)  # fmt: skip
def test_published_sets(tokenizer, data, name, found):
  loaded = _load(name, tokenizer, data)
  assert {task.name: len(task.prompts) for task in loaded} == found
  names = [prompt.name for task in loaded for prompt in task.prompts]
  assert len(set(names)) == len(names)
  (fewer, *_) = _load(name, tokenizer, data, count=1)
  assert len(fewer.prompts) == 1


@pytest.mark.parametrize(
  ('task', 'name', 'text', 'words'),
  [
    ('spec_bench', 'question.jsonl', '', 'empty'),
    ('spec_bench', 'question.jsonl', '{"id": 1}\n', "line 1 has no text 'cat"),
    ('spec_bench', 'question.jsonl', '{"category": "qa"}', 'a list of texts'),
    ('humaneval', 'HumanEval.jsonl.gz', 'not compressed', 'HumanEval'),
    ('wmt', 'wmt_ende.json', '{}', 'expected a JSON list'),
    ('wmt', 'wmt_ende.json', '[1]', 'entry 0: expected str'),
    ('alpaca', 'alpaca_data.json', '[{"output": "a"}]', 'has no prompt'),
    ('xsum', 'xsum.jsonl', '{"prompt": "", "completion": ""}', 'the example'),
  ],
)
def test_damaged_files(tokenizer, tmp_path, task, name, text, words):
  (tmp_path / name).write_text(text)
  with pytest.raises(UserError, match=words):
    _load(task, tokenizer, tmp_path)


def test_equal_names_are_numbered(tokenizer, tmp_path):
  row = json.dumps({'question_id': 1, 'category': 'qa', 'turns': ['a']})
  (tmp_path / 'question.jsonl').write_text(f'{row}\n' * 3)
  (task,) = _load('spec_bench', tokenizer, tmp_path)
  assert [p.name for p in task.prompts] == ['qa:1', 'qa:1 (2)', 'qa:1 (3)']


def _lines(path, *rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


def test_prompts_in_a_file(tokenizer, tmp_path):
  path = _lines(
    tmp_path / 'own.jsonl',
    {'prompt': 'x = 1', 'id': 'first'},
    {'turns': ['def f', 'and g?']},
    'y = 2',
    {'prompt': 'a b ' * 200},
  )
  # One does not fit: all others are taken.
  for count in (3, 100):
    (task,) = _load(path, tokenizer, '', count=count)
    assert task.name == 'own' and task.score is None
    assert [(p.name, p.text, p.later) for p in task.prompts] == [
      ('own:first', 'x = 1', ()),
      ('own:2', 'def f', ('and g?',)),
      ('own:3', 'y = 2', ()),
    ]
  texts = tmp_path / 'own.json'
  texts.write_text('["x = 1", " ", "y = 2"]')
  (task,) = _load(str(texts), tokenizer, '', count=9)
  assert [p.text for p in task.prompts] == ['x = 1', 'y = 2']
  for name in (path, str(texts)):
    with pytest.raises(UserError, match='none of its . .* at most 1 tokens'):
      _load(name, tokenizer, '', max_tokens=1)


@pytest.mark.parametrize(
  ('row', 'words'),
  [
    *(
      (row, "line 2 has no 'prompt'")
      for row in ({'text': 'x'}, 5, None, {'turns': 'abc'})
    ),
    ({'prompt': ''}, "line 2: prompt: got '', expected a text"),
    ({'prompt': 'x', 'id': [1]}, r'line 2: id: got \[1\], expected a text'),
    ({'prompt': 'x', 'reference': 4}, 'line 2: reference: got 4, expected'),
    ({'prompt': 'x'}, 'line 2 has no reference'),
    (
      {'prompt': 'x', 'reference': 'y', 'scorer': 'rouge'},
      r"scorer: got \[None, 'rouge'\]",
    ),
  ],
)
def test_invalid_json_lines(tokenizer, tmp_path, row, words):
  path = _lines(tmp_path / 'own.jsonl', {'prompt': 'a', 'reference': 'b'}, row)
  with pytest.raises(UserError, match=words):
    _load(path, tokenizer, '', count=1)


def test_invalid_json_is_reported_with_its_line(tokenizer, tmp_path):
  path = tmp_path / 'own.jsonl'
  path.write_text('{"prompt": "a"}\n\n{"prompt" "b"}\n')
  with pytest.raises(UserError, match="line 3: not valid JSON: Expecting ':'"):
    _load(str(path), tokenizer, '')


def test_references_are_scored_by_the_files_scorer(tokenizer, tmp_path):
  row = {'prompt': '1 + 1 =', 'reference': '2\n3'}
  path = _lines(tmp_path / 'own.jsonl', row)
  (task,) = _load(path, tokenizer, '')
  prompt = task.prompts[0]
  assert task.scored(prompt, ' 2 \n3\n1 + 2 =') == {'exact match': 1.0}
  assert task.scored(prompt, '2\n4') == {'exact match': 0.0}
  assert task.scored(prompt, '') == {'exact match': 0.0}
  _lines(tmp_path / 'own.jsonl', row | {'scorer': 'rouge'})
  (task,) = _load(path, tokenizer, '')
  assert task.scored(prompt, '2 3\n')['ROUGE-L'] == 1
  # A file cannot name code.
  _lines(tmp_path / 'own.jsonl', row | {'scorer': 'my.module:score'})
  with pytest.raises(UserError, match='expected one of exact_match, rouge'):
    _load(path, tokenizer, '')


def test_a_long_conversation_loses_its_beginning(tokenizer):
  prompt = Question('p', 'import ast\n', ('def f(x):',))
  whole = tokens_of(tokenizer, prompt, ['x = 1'], chat=False)
  text = 'import ast\nx = 1\n\ndef f(x):\n\n'
  assert whole == tokenizer.encode(text)
  first = tokens_of(tokenizer, prompt, [], chat=False)
  assert first == tokenizer.encode('import ast\n')
  cut = last(whole, 6, tokenizer)
  assert len(cut) == 6
  assert cut[0] == tokenizer.bos_id and cut[1:] == whole[-5:]
  assert last(whole, len(whole), tokenizer) == whole
  assert last(whole[1:], 6, tokenizer) == whole[-6:]  # there was no bos


def test_turns_in_a_chat_template(tokenizer):
  files = Files(chat_template=QWEN3, parses=True)
  tokenizer = SentencePiece(tokenizer.proto, files)
  prompt = Question('p', 'a', ('b',))
  for variables, end in (({}, ''), ({'enable_thinking': False}, NO_THOUGHTS)):
    tokens = tokens_of(tokenizer, prompt, ['x'], True, variables)
    text = f'<s><user>a\n<assistant>x\n<user>b\n<assistant>{end}'
    assert tokens == tokenizer.encode(text, bos=False)


def test_humaneval_runs_the_tests_of_a_problem(data, tokenizer):
  (task,) = _load('humaneval', tokenizer, data)
  prompt = task.prompts[0]
  assert task.runs_answers
  right = read_lines(data / 'HumanEval.jsonl.gz')[0]['canonical_solution']
  # The answer ends where it leaves the function.
  assert task.score(prompt, f'{right}\n# the end\n1 / 0')['pass@1'] == 1
  wrong = task.score(prompt, '  return max(values)\n')
  assert wrong['pass@1'] == 0 and 'AssertionError' in wrong['why']
  answer = '  a = 1\n\n  return a\n\n# the end\nprint(1)\n'
  assert published_sets.function_body(answer) == '  a = 1\n\n  return a\n'
  # The first line continues the prompt.
  assert published_sets.function_body('return 1\ndef g():\n') == 'return 1'


def test_rouge_of_the_first_line(data, tokenizer):
  (task,) = _load('xsum', tokenizer, data)
  prompt = task.prompts[0]
  assert prompt.reference == 'A bridge has been closed in town 1.'
  # The example, its summary, then the article.
  assert prompt.text.startswith('Summarize: In town 0')
  assert 'closed in town 0.\n\nSummarize: In town 1' in prompt.text
  same = task.score(prompt, f' {prompt.reference}\nSummarize: another\n')
  assert same == {'ROUGE-1': 1.0, 'ROUGE-2': 1.0, 'ROUGE-L': 1.0}
  half = task.score(prompt, 'A bridge')
  # 2 of 8 words, 1 of 7 pairs.
  assert half['ROUGE-1'] == pytest.approx(2 * 2 / (8 + 2))
  assert half['ROUGE-2'] == pytest.approx(2 * 1 / (7 + 1))
  assert task.new_tokens(512) == 128 and task.new_tokens(64) == 64


_OWN_TASKS = """
from specsamp.evaluation.tasks import Question, Task

questions = [Question(f'{i}', f'{i} =', reference=f'{i}') for i in range(3)]

def whole(tokenizer, count, max_tokens, data):
  assert tokenizer.vocab_size == 512 and max_tokens == 64 and data == 'here'
  score = lambda prompt, answer: {'right': answer == prompt.reference}
  return Task('own', questions[:count], score=score)

none = lambda *given: questions
numbered = lambda *given: Task('own', [Question(3, 'a text')])
empty = lambda *given: Task('own', [])
percent = lambda *given: Task('own', questions, score=lambda p, a: {'b': 100})
failing = lambda *given: Task('own', questions, score=lambda p, a: 1 / 0)
"""


@pytest.fixture(scope='module')
def own_tasks(tmp_path_factory):
  folder = tmp_path_factory.mktemp('own')
  (folder / 'own_tasks.py').write_text(_OWN_TASKS)
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(folder)
    yield


def test_a_user_defined_task(tokenizer, own_tasks):
  (task,) = _load('own_tasks:whole', tokenizer, 'here', count=3)
  assert [prompt.text for prompt in task.prompts] == ['0 =', '1 =', '2 =']
  # A bool becomes a number.
  assert json.dumps(task.scored(task.prompts[1], '1')) == '{"right": 1.0}'


@pytest.mark.parametrize(
  ('name', 'words'),
  [
    ('none', 'task own_tasks:none: made a list, expected a specsamp.eval'),
    ('numbered', 'prompt 0: got 3, expected a text'),
    ('empty', 'task: own_tasks:empty has no prompt'),
    ('percent', r"score: got {'b': 100}, expected numbers in \[0, 1\]"),
    ('failing', r'score failed: ZeroDivisionError: .*own_tasks.py:\d+\)'),
  ],
)
def test_an_invalid_user_defined_task(tokenizer, own_tasks, name, words):
  with pytest.raises(UserError, match=words):
    _load(f'own_tasks:{name}', tokenizer, '')


@pytest.mark.parametrize(
  'answer, valid, whole',
  [
    ('    return 1\n\n  def g(self):\n    x = ((\n', True, True),
    ('    return (1\n\n  def g(self):\n    x\n', False, False),
    ('    x = """\nno\n"""\n  y\n', True, True),  # a string does not end it
    ('    x = (1,\n     2, "ab', True, False),  # the budget cut it
    ('    if x:\n', True, False),
    ('    if x\n    y', False, False),
    ('   x = 1\n', False, False),  # another indentation
    ('  x = 1\n  y = 2\n', False, False),  # outside of the function
    ('    x = "\\d"\n  y\n', True, True),  # no warning of an escape
    ('    x = "\0"\n  y\n', False, False),
    ('', False, False),
    ('    ret', False, False),
  ],
)
def test_valid_python(answer, valid, whole):
  method = '  def f(self):\n    """Doc."""\n'
  prompt = Question('p', 'prompt', reference=method)
  scores = scorers.valid_python(prompt, answer)
  assert scores == {'valid Python': valid, 'whole function': whole}


@pytest.mark.parametrize('name', ['code', 'training_code'])
def test_functions_of_the_library_are_valid(tokenizer, name):
  (task,) = tasks.load(name, tokenizer, 24, 96)
  sources = corpora.python_library()
  for prompt in task.prompts:
    path, _, _ = prompt.name.partition(':')
    assert corpora.is_held_out(path) == (name == 'code')
    answer = sources[path].partition(prompt.reference)[2] + 'end'
    assert set(task.scored(prompt, answer).values()) == {1}, prompt.name
    assert task.scored(prompt, answer[:200])['valid Python'] == 1, prompt.name
