"""Completions over HTTP are those of the engine, streamed or not."""

import numpy as np
import pytest
import running

import specsamp
from specsamp import SamplingParams
from specsamp.utils import compilation_cache

_BODY = {'prompt': 'abcd', 'max_tokens': 20, 'temperature': 1.0, 'seed': 5}


def _texts(response) -> list[str]:
  choices = response.json()['choices']
  assert [choice['index'] for choice in choices] == list(range(len(choices)))
  return [choice['text'] for choice in choices]


def test_a_text_is_that_of_generate(served, models):
  target, drafter = models
  sampling = dict(temperature=1.3, top_k=4, top_p=0.9, min_p=0.05)
  wanted = specsamp.generate(
    target,
    [[0, 1, 2, 3]] * 4,
    drafter=drafter,
    sampling=SamplingParams(**sampling),
    max_new_tokens=20,
    seed=5,
  )
  response = served.post(_BODY | sampling | {'n': 4})
  assert response.status_code == 200, response.text
  assert _texts(response) == wanted.texts
  usage = response.json()['usage']
  details = usage.pop('completion_tokens_details')
  assert usage.pop('prompt_tokens_details') == {'cached_tokens': 0}
  assert list(usage.values()) == [4, 80, 84]  # prompt, completion, total
  accepted = details['accepted_prediction_tokens']
  assert 0 < accepted <= wanted.num_accepted_per_pos.sum()


def test_fields_are_those_of_openai(served):
  response = served.post(_BODY).json()
  assert response['object'] == 'text_completion'
  assert response['model'] == 'tiny' and response['id'].startswith('cmpl-')
  assert isinstance(response['created'], int)
  listed = served.client.get('v1/models').json()
  assert listed['object'] == 'list' and listed['data'][0]['id'] == 'tiny'
  assert served.client.get('health').json() == {'status': 'ok'}
  page = served.client.get('/')
  assert 'src=' not in page.text and 'href=' not in page.text
  assert "default-src 'none'" in page.headers['content-security-policy']


def test_prompts_are_texts_or_ids_one_or_several(served):
  args = _BODY | {'n': 2, 'temperature': 0}
  many, first, second = (
    _texts(served.post(args | {'prompt': prompt}))
    for prompt in (['abcd', 'ca'], [0, 1, 2, 3], 'ca')
  )
  assert many == first + second


def _parts(chunks, index):
  choices = [choice for chunk in chunks for choice in chunk['choices']]
  return [choice for choice in choices if choice['index'] == index]


def test_a_stream_is_the_text_in_parts(served):
  body = _BODY | {'n': 3, 'logprobs': 2}
  whole = served.post(body).json()
  options = {'stream_options': {'include_usage': True}}
  *chunks, last = served.stream(body | options)
  assert last['choices'] == [] and last['usage'] == whole['usage']
  assert len({chunk['id'] for chunk in chunks}) == 1
  for wanted in whole['choices']:
    parts = _parts(chunks, wanted['index'])
    assert len(parts) > 1
    assert parts[-1]['finish_reason'] == wanted['finish_reason']
    assert all(part['finish_reason'] is None for part in parts[:-1])
    assert ''.join(part['text'] for part in parts) == wanted['text']
    for name, values in wanted['logprobs'].items():
      assert sum((part['logprobs'][name] for part in parts), []) == values


def test_a_chat_in_parts(served):
  messages = [{'role': 'user', 'content': 'abcd'}]
  body = {'messages': messages, 'n': 3, 'seed': 5, 'logprobs': True}
  body |= {'stop': ['ab', 'kkk', 'g'], 'max_tokens': 20}
  whole, chunks = served.post(body, True).json(), served.stream(body, True)
  assert chunks[0]['object'] == 'chat.completion.chunk'
  for wanted in whole['choices']:
    first, *parts = _parts(chunks, wanted['index'])
    assert first['delta'] == {'role': 'assistant', 'content': ''}
    text = ''.join(part['delta'].get('content', '') for part in parts)
    assert text == wanted['message']['content']
    logprobs = sum((part['logprobs']['content'] for part in parts), [])
    assert logprobs == wanted['logprobs']['content']


def test_a_chat_is_the_completion_of_its_template(served):
  messages = [
    {'role': 'system', 'content': 'ab'},
    {'role': 'user', 'content': [{'type': 'text', 'text': 'cd'}]},
  ]
  body = _BODY | {'messages': messages, 'max_completion_tokens': 20}
  del body['prompt'], body['max_tokens']
  response = served.post(body, chat=True).json()
  assert response['object'] == 'chat.completion'
  message = response['choices'][0]['message']
  text = served.post(_BODY).json()['choices'][0]['text']
  assert message == {'role': 'assistant', 'content': text}
  # By default the completion fills the context.
  del body['max_completion_tokens']
  usage = served.post(body, chat=True).json()['usage']
  assert usage['total_tokens'] == 48


def test_variables_of_a_chat(served):
  body = _BODY | {'messages': [{'role': 'user', 'content': 'ab'}]}
  del body['prompt']
  for variables, prompt in (
    (None, 'ab'),
    ({'end': 'cd', 'unheard_of': {'x': None}}, 'abcd'),
  ):
    chat = served.post(body | {'chat_template_kwargs': variables}, chat=True)
    message = chat.json()['choices'][0]['message']
    wanted = _texts(served.post(_BODY | {'prompt': prompt}))
    assert [message['content']] == wanted


@pytest.mark.parametrize('stop', ['g', ['zz', 'kk', 'ba'], ['abcdefgh']])
def test_stop_strings(served, stop):
  """Each letter is a token, so they may begin and end anywhere in a round."""
  stops = [stop] if isinstance(stop, str) else stop
  body = _BODY | {'n': 4, 'max_tokens': 40}
  whole = served.post(body).json()
  cut = served.post(body | {'stop': stop}).json()
  tokens = 0
  for full, got in zip(whole['choices'], cut['choices'], strict=True):
    starts = [full['text'].find(s) for s in stops if s in full['text']]
    wanted = full['text'][: min(starts)] if starts else full['text']
    assert got['text'] == wanted
    assert got['finish_reason'] == ('stop' if starts else 'length')
    ends = [full['text'].find(s) + len(s) for s in stops if s in full['text']]
    tokens += min(ends, default=40)
  assert cut['usage']['completion_tokens'] == tokens


def test_a_stop_string_frees_its_slot_alone(served):
  """At once, while the other sample continues."""
  body = _BODY | {'n': 2, 'max_tokens': 44, 'ignore_eos': True}
  texts = _texts(served.post(body))
  stop = next(
    texts[0][i : i + 3]
    for i in range(1, 6)
    if texts[0][i : i + 3] not in texts[1]
  )
  served.wait_idle()
  before = served.metric('output_tokens_total')
  got = _texts(served.post(body | {'stop': stop}))
  served.wait_idle()
  assert got == [texts[0].partition(stop)[0], texts[1]]
  # Two more rounds may be in flight when it is found.
  assert served.metric('output_tokens_total') - before < 44 + 6 + 3 * 4


def test_logprobs(served, models):
  response = served.post(_BODY | {'logprobs': 3}).json()
  choice = response['choices'][0]
  logprobs = choice['logprobs']
  assert ''.join(logprobs['tokens']) == choice['text']
  assert logprobs['text_offset'] == list(range(20))
  with running.make_engine(*models) as engine:
    (completion,) = engine.generate('abcd', max_new_tokens=20, seed=5)
  wanted = completion.logprobs
  np.testing.assert_allclose(logprobs['token_logprobs'], wanted.raw)
  for row, token, top in zip(
    wanted.top_tokens, logprobs['tokens'], logprobs['top_logprobs'], strict=True
  ):
    assert top.keys() == {chr(ord('a') + i) for i in row[:3]} | {token}
  messages = [{'role': 'user', 'content': 'abcd'}]
  body = {'messages': messages, 'logprobs': True, 'top_logprobs': 3, 'seed': 5}
  chat = served.post(body | {'max_tokens': 20}, chat=True).json()
  content = chat['choices'][0]['logprobs']['content']
  assert [token['logprob'] for token in content] == logprobs['token_logprobs']
  for token in content:
    assert token['bytes'] == list(token['token'].encode())
    assert len(token['top_logprobs']) == 3
  none = served.post(_BODY | {'logprobs': 0}).json()['choices'][0]['logprobs']
  assert all(len(top) == 1 for top in none['top_logprobs'])


def test_accepted_characters_are_marked(served, models):
  """If a burst has one round."""
  body = _BODY | {'stream_options': {'include_accepted': True}}
  parts = _parts(served.stream(body), 0)
  with running.serving(*models, rounds=4) as several:
    blocks = _parts(several.stream(body), 0)
  response = served.post(_BODY).json()
  marked = sum(end - start for part in parts for start, end in part['accepted'])
  details = response['usage']['completion_tokens_details']
  assert marked == details['accepted_prediction_tokens'] > 0
  assert {part['accepted'] for part in blocks} == {None}
  assert all(1 <= part['block_efficiency'] <= 4 for part in parts + blocks)
  # The last τ counts all rounds.
  assert parts[-1]['block_efficiency'] == blocks[-1]['block_efficiency']
  text = ''.join(part['text'] for part in blocks)
  assert text == response['choices'][0]['text']


def test_stop_tokens(served, monkeypatch):
  """They end a completion, have no characters, and are counted."""
  text = _texts(served.post(_BODY))[0]
  eos = text[8]
  stop_ids = (ord(eos) - ord('a'),)
  monkeypatch.setattr(running.Chatty, 'stop_ids', stop_ids)
  response = served.post(_BODY | {'logprobs': 0}).json()
  (choice,) = response['choices']
  assert choice['text'] == text.partition(eos)[0]
  assert choice['finish_reason'] == 'stop'
  count = response['usage']['completion_tokens']
  assert count == len(choice['text']) + 1 == len(choice['logprobs']['tokens'])
  assert _texts(served.post(_BODY | {'ignore_eos': True})) == [text]


def test_nothing_is_compiled_for_a_request(served):
  with compilation_cache.compilations() as compiled:
    for i in range(12):
      body = {'prompt': 'abcdefghijk'[: i % 9 + 1] * (i % 3 + 1)}
      more = {'temperature': i % 2, 'top_k': i % 4, 'n': i % 3 + 1}
      more |= {'stop': 'ab' if i % 5 else None, 'logprobs': i % 3}
      assert served.post(body | more).status_code == 200
    served.wait_idle()
  assert not compiled


def test_a_further_turn_reads_the_rest_alone(served):
  # In buckets of 32 and 48 tokens.
  args = dict(max_tokens=4, ignore_eos=True, temperature=0)
  turn = [{'role': 'user', 'content': 'abcdefgabc' * 3}]
  before = served.metric('reused_prompt_tokens_total')
  first = served.post(args | {'messages': turn}, chat=True).json()
  turn.append(first['choices'][0]['message'])
  turn.append({'role': 'user', 'content': 'dcb'})
  second = served.post(args | {'messages': turn}, chat=True).json()
  cached = [
    answer['usage']['prompt_tokens_details']['cached_tokens']
    for answer in (first, second)
  ]
  # All but the last three tokens of the first turn.
  assert cached == [0, 30 + 4 - 3]
  assert served.metric('reused_prompt_tokens_total') - before == 31
  prompt = [ord(x) - ord('a') for turn in turn for x in turn['content']]
  target = served.engine.model
  alone = specsamp.generate(
    target, prompt, max_new_tokens=4, sampling=SamplingParams(temperature=0.0)
  )
  assert second['choices'][0]['message']['content'] == alone.texts[0]


def test_metrics_count(served):
  names = ('prompt_tokens_total', 'output_tokens_total', 'rounds_total')
  names += ('requests_total{outcome="completed"',)
  before = [served.metric(name) for name in names]
  served.post(_BODY)
  served.wait_idle()
  after = [served.metric(name) for name in names]
  prompt, output, rounds, requests = np.subtract(after, before)
  assert (prompt, output, requests) == (4, 20, 1) and 5 <= rounds <= 20
  assert served.metric('slots ') == 3 and served.metric('queue_texts') == 0
  assert served.metric('block_efficiency') > 1
  assert served.metric('tokens_per_second') > 0
