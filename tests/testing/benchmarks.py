"""Files in the formats of the benchmarks' authors, with a few prompts."""

import gzip
import json
import pathlib

_FUNCTION = '''def {name}(values):
  """Returns the {name} of the values.

  >>> {name}([1, 2, 3])
  {result}
  """
'''


def write(folder: pathlib.Path) -> None:
  """Writes a few prompts of each benchmark into one folder."""
  folder.mkdir(parents=True, exist_ok=True)
  kinds = ('writing', 'coding', 'translation', 'summarization', 'qa',
           'math_reasoning', 'rag')  # fmt: skip
  questions = [
    {
      'question_id': 10 * k + i,
      'category': kind,
      'turns': [f'Question {i} of {kind}: what is {k} and {i}?']
      + ['And why is that so?'] * (kind in ('writing', 'coding')),
    }
    for k, kind in enumerate(kinds)
    for i in range(2)
  ]
  lines = lambda rows: ''.join(json.dumps(row) + '\n' for row in rows)
  (folder / 'question.jsonl').write_text(lines(questions))
  problems = [
    {
      'task_id': f'HumanEval/{i}',
      'prompt': _FUNCTION.format(name=name, result=result),
      'entry_point': name,
      'canonical_solution': f'  return {name[0]}{name[1:3]}(values)\n',
      'test': 'def check(candidate):\n'
      f'  assert candidate([1, 2, 3]) == {result}\n',
    }
    for i, (name, result) in enumerate((('summed', 6), ('maximum', 3)))
  ]
  with gzip.open(folder / 'HumanEval.jsonl.gz', 'wt') as file:
    file.write(lines(problems))
  articles = [
    {
      'prompt': f'Summarize: In town {i} a bridge was closed on Monday.\n',
      'completion': f'A bridge has been closed in town {i}.<|endoftext|>',
    }
    for i in range(4)
  ]
  (folder / 'xsum.jsonl').write_text(lines(articles))
  instructions = [
    {'instruction': 'Name three colours.', 'input': '', 'output': 'Red, ..'},
    {'instruction': 'Turn it round.', 'input': 'abc', 'output': 'cba'},
  ]
  (folder / 'alpaca_data.json').write_text(json.dumps(instructions))
  sentences = ['Say it in German.\nInput: Good day\nOutput: '] * 2
  (folder / 'wmt_ende.json').write_text(json.dumps(sentences))
