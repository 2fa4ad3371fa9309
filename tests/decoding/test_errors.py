"""Each mistake is told in one line: what was got, and what was expected."""

import dataclasses

import pytest
from testing import tiny

import specsamp
from specsamp import SamplingParams, UserError
from specsamp.drafting import model_drafter

NAN = float('nan')

CASES = {
  'no prompts': (dict(prompts=[]), ['none', 'at least one']),
  'empty prompt': (dict(prompts=[[1], []]), ['prompt 1', 'at least one']),
  'empty text': (dict(prompts=''), ['prompt 0', 'at least one']),
  'token too large': (dict(prompts=[[1, 11]]), ['prompt 0', '11', '0 to 10']),
  'negative token': (dict(prompts=[[1], [-1]]), ['prompt 1', '-1', '0 to 10']),
  'too long': (
    dict(prompts=[[1], [1] * 60], max_new_tokens=[1, 5]),
    ['prompt 1', '60', '5', '64'],
  ),
  'budget 0': (dict(max_new_tokens=0), ['max_new_tokens', '0', 'at least 1']),
  'budget of one row 0': (
    dict(prompts=[[1], [2]], max_new_tokens=[4, 0]),
    ['max_new_tokens', '[4, 0]', 'at least 1'],
  ),
  'budget a float': (dict(max_new_tokens=2.0), ['2.0', 'an integer']),
  'budgets too few': (
    dict(prompts=[[1], [2], [3]], max_new_tokens=[1, 2]),
    ['max_new_tokens', '[1, 2]', '3 prompts'],
  ),
  'negative seed': (dict(seed=-1), ['seed', '-1', 'at least 0']),
  'seed too large': (dict(seed=2**31), ['seed', str(2**31), 'below 2**31']),
  'seeds too many': (dict(seed=[1, 2]), ['seed', '[1, 2]', '1 prompts']),
  'top-p 0': (
    dict(sampling=SamplingParams(top_p=0.0)),
    ['top_p', '0.0', '(0, 1]'],
  ),
  'top-p 1.5': (
    dict(sampling=SamplingParams(top_p=1.5)),
    ['top_p', '1.5', '(0, 1]'],
  ),
  'negative temperature': (
    dict(sampling=SamplingParams(temperature=-1.0)),
    ['temperature', '-1.0', 'from 0 to 1e+06'],
  ),
  'temperature NaN': (
    dict(sampling=SamplingParams(temperature=NAN)),
    ['temperature', 'nan', 'from 0 to 1e+06'],
  ),
  'temperatures too many': (
    dict(sampling=SamplingParams(temperature=[1.0, 1.0])),
    ['temperature', '[2]', '[1]'],
  ),
  'unknown verifier': (
    dict(verifier='tokens'),
    ["'tokens'", 'token, block'],
  ),
}


def _one_line(error, words):
  message = str(error.value)
  assert message and '\n' not in message
  for word in words:
    assert word in message, message


@pytest.mark.parametrize('call', [specsamp.generate, specsamp.stream])
@pytest.mark.parametrize('name', CASES)
def test_arguments(pair, name, call):
  args, words = CASES[name]
  with pytest.raises(UserError) as error:
    got = call(pair[0], **{'prompts': [[1, 2]], 'max_new_tokens': 4, **args})
    next(iter(got))  # a stream checks when it begins
  _one_line(error, words)


def test_a_model_is_no_drafter(pair):
  target, draft = pair
  with pytest.raises(UserError, match='drafter: got a LanguageModel, expected'):
    specsamp.generate(target, [[1]], drafter=draft, max_new_tokens=4)


def test_a_draft_with_another_vocabulary(pair):
  target, draft = pair
  other = tiny.draft(7, 0)
  # With the target's own tokenizer, yet fewer tokens.
  drafter = model_drafter(
    dataclasses.replace(other, tokenizer=target.tokenizer), 2
  )
  with pytest.raises(UserError) as error:
    specsamp.generate(target, [[1]], drafter=drafter, max_new_tokens=4)
  _one_line(error, ['vocabulary', '7', '11'])


@pytest.mark.parametrize(
  'tokenizer', [tiny.Letters(7), tiny.Letters(11, 'second')]
)
def test_a_draft_with_another_tokenizer(pair, tokenizer):
  target, draft = pair
  drafter = model_drafter(dataclasses.replace(draft, tokenizer=tokenizer), 2)
  with pytest.raises(UserError) as error:
    specsamp.generate(target, [[1]], drafter=drafter, max_new_tokens=4)
  _one_line(error, ['tokenizer', str(tokenizer.vocab_size), '11'])


@pytest.mark.parametrize('draft_len', [0, -1])
def test_draft_length(pair, draft_len):
  with pytest.raises(UserError) as error:
    model_drafter(pair[1], draft_len)
  _one_line(error, ['draft length', str(draft_len), 'at least 1'])
