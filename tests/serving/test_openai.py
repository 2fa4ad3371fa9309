"""The official client against the server, and the documents' example."""

import pathlib
import re

import pytest
import running

openai = pytest.importorskip('openai')

_ARGS = dict(model='tiny', max_tokens=20, seed=5)


@pytest.fixture
def client(served):
  with openai.OpenAI(
    base_url=f'{served.url}v1', api_key='none', max_retries=0,
    timeout=running.PATIENCE,
  ) as client:  # fmt: skip
    yield client


def test_chat(client):
  messages = [{'role': 'user', 'content': 'abcd'}]
  args = _ARGS | dict(messages=messages, logprobs=True, top_logprobs=2)
  out = client.chat.completions.create(**args)
  (choice,) = out.choices
  content = choice.logprobs.content
  assert ''.join(token.token for token in content) == choice.message.content
  *chunks, last = client.chat.completions.create(
    **args, stream=True, stream_options={'include_usage': True}
  )
  assert last.usage == out.usage and not last.choices
  parts = [chunk.choices[0].delta.content or '' for chunk in chunks]
  assert ''.join(parts) == choice.message.content


def test_errors(client):
  with pytest.raises(openai.BadRequestError, match='temperature') as error:
    client.completions.create(**_ARGS, prompt='a', temperature=-1)
  assert error.value.param == 'temperature'
  with pytest.raises(openai.NotFoundError, match='gpt') as error:
    client.completions.create(model='gpt', prompt='a')
  assert error.value.code == 'model_not_found'


def test_the_example_of_the_documents(client, served, capsys):
  source = pathlib.Path('docs/serving.md').read_text(encoding='utf-8')
  (example,) = re.findall(r'```py\n(.*?)```', source, flags=re.DOTALL)
  example = example.replace('http://127.0.0.1:8000/', served.url)
  # This model knows letters only.
  example = example.replace("'pycode'", "'tiny'")
  example = example.replace("'def mean(values):\\n'", "'abcd'")
  exec(compile(example, 'docs/serving.md', 'exec'), {})
  assert capsys.readouterr().out.count(' length\n') == 2
