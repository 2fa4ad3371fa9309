"""The official client against the server, and the documents' example."""

import pathlib
import re

import pytest
import running

openai = pytest.importorskip('openai')

_MESSAGES = [{'role': 'user', 'content': 'abcd'}]
_ARGS = dict(model='tiny', max_tokens=20, seed=5)


@pytest.fixture
def client(served):
  with openai.OpenAI(
    base_url=f'{served.url}v1', api_key='none', max_retries=0,
    timeout=running.PATIENCE,
  ) as client:  # fmt: skip
    yield client


def test_models(client):
  assert [model.id for model in client.models.list()] == ['tiny']
  assert client.models.retrieve('tiny').object == 'model'


def test_completions(client):
  args = _ARGS | dict(prompt='abcd', n=4, logprobs=2)
  out = client.completions.create(**args)
  assert [choice.index for choice in out.choices] == [0, 1, 2, 3]
  assert len({choice.text for choice in out.choices}) == 4
  assert out.usage.total_tokens == 84
  assert out.usage.completion_tokens_details.accepted_prediction_tokens > 0
  for choice in out.choices:
    assert choice.finish_reason == 'length'
    assert ''.join(choice.logprobs.tokens) == choice.text
    assert len(choice.logprobs.top_logprobs) == 20
  texts = [''] * 4
  for chunk in client.completions.create(**args, stream=True):
    texts[chunk.choices[0].index] += chunk.choices[0].text
  assert texts == [choice.text for choice in out.choices]


def test_chat(client):
  args = _ARGS | dict(messages=_MESSAGES, logprobs=True, top_logprobs=2)
  out = client.chat.completions.create(**args)
  choice = out.choices[0]
  assert choice.message.role == 'assistant'
  content = choice.logprobs.content
  assert ''.join(token.token for token in content) == choice.message.content
  assert all(len(token.top_logprobs) == 2 for token in content)
  *chunks, last = client.chat.completions.create(
    **args, stream=True, stream_options={'include_usage': True}
  )
  assert last.usage == out.usage and not last.choices
  assert chunks[0].choices[0].delta.role == 'assistant'
  parts = [chunk.choices[0].delta.content or '' for chunk in chunks]
  assert ''.join(parts) == choice.message.content
  assert chunks[-1].choices[0].finish_reason == 'length'


def test_other_fields_go_in_the_body(client):
  args = _ARGS | dict(prompt='abcd', temperature=2.0)
  greedy = client.completions.create(**args, extra_body={'top_k': 1})
  other = client.completions.create(**args | {'temperature': 0})
  assert greedy.choices[0].text == other.choices[0].text


def test_errors(client, served):
  with pytest.raises(openai.BadRequestError, match='temperature') as error:
    client.completions.create(**_ARGS, prompt='a', temperature=-1)
  assert error.value.param == 'temperature'
  with pytest.raises(openai.NotFoundError, match='gpt') as error:
    client.completions.create(model='gpt', prompt='a')
  assert error.value.code == 'model_not_found'
  with running.held(served.engine):
    stream = client.completions.create(**_ARGS, prompt='a', n=8, stream=True)
    running.wait_for(lambda: served.worker.num_open == 8)
    with pytest.raises(openai.RateLimitError, match='queue is full'):
      client.completions.create(**_ARGS, prompt='a')
    stream.close()


def test_the_example_of_the_documents(client, served, monkeypatch, capsys):
  source = pathlib.Path('docs/serving.md').read_text(encoding='utf-8')
  (example,) = re.findall(r'```py\n(.*?)```', source, flags=re.DOTALL)
  example = example.replace('http://127.0.0.1:8000/', served.url)
  # This model knows letters only.
  example = example.replace("'pycode'", "'tiny'")
  example = example.replace("'def mean(values):\\n'", "'abcd'")
  exec(compile(example, 'docs/serving.md', 'exec'), {})
  assert capsys.readouterr().out.count(' length\n') == 2
