"""Each invalid argument is reported in one line: what, got and expected."""

import dataclasses

import pytest
from testing import tiny

import specsamp
from specsamp import SamplingParams, UserError
from specsamp.drafting import model_drafter

CASES = [
  (dict(prompts=[]), ['prompts', 'at least one']),
  (dict(prompts=[[1], []]), ['prompt 1', 'at least one']),
  (dict(prompts=''), ['prompt 0', 'at least one']),
  (dict(prompts=[[1, 11]]), ['prompt 0', '11', '0 to 10']),
  (dict(prompts=[[1], [-1]]), ['prompt 1', '-1', '0 to 10']),
  (dict(prompts=[3, [1, 2]]), ['prompt', 'a text or a list of token ids']),
  (dict(prompts=[[3, [4]]]), ['prompt 0', 'a text or a list of token ids']),
  (
    dict(prompts=[[1], [1] * 60], max_new_tokens=[1, 5]),
    ['prompt 1', '60', '5', '64'],
  ),
  (dict(max_new_tokens=0), ['max_new_tokens', '0', 'at least 1']),
  (dict(max_new_tokens=2.0), ['2.0', 'an integer']),
  (
    dict(prompts=[[1], [2], [3]], max_new_tokens=[1, 2]),
    ['max_new_tokens', '[1, 2]', '3 prompts'],
  ),
  (dict(seed=-1), ['seed', '-1', 'at least 0']),
  (dict(seed=2**31), ['seed', str(2**31), 'below 2**31']),
  (dict(seed=[1, 2]), ['seed', '[1, 2]', '1 prompts']),
  (dict(stop_tokens=[11]), ['stop_tokens', '11']),
  # sampling/test_transforms.py has the other ranges.
  (dict(sampling=SamplingParams(top_p=0.0)), ['top_p', '0.0', '(0, 1]']),
  (
    dict(sampling=SamplingParams(temperature=[1.0, 1.0])),
    ['temperature', '[2]', '[1]'],
  ),
  (dict(verifier='tokens'), ["'tokens'", 'token, block']),
]


def _check_refused(call, words, *args, **options):
  with pytest.raises(UserError) as error:
    call(*args, **options)
  message = str(error.value)
  assert message and '\n' not in message
  for word in words:
    assert word in message, message


@pytest.mark.parametrize(('args', 'words'), CASES)
def test_arguments(pair, args, words):
  args = {'prompts': [[1, 2]], 'max_new_tokens': 4, **args}
  _check_refused(specsamp.generate, words, pair[0], **args)


def test_drafters(pair):
  target, draft = pair
  args = dict(max_new_tokens=4)

  def check(drafter, *words):
    _check_refused(
      specsamp.generate, words, target, [[1]], drafter=drafter, **args
    )

  check(draft, 'drafter: got a LanguageModel, expected')
  # The target's tokenizer, but fewer tokens.
  fewer = dataclasses.replace(tiny.draft(7, 0), tokenizer=target.tokenizer)
  check(model_drafter(fewer, 2), 'vocabulary', '7', '11')
  for tokenizer in (tiny.Letters(7), tiny.Letters(11, 'second')):
    other = dataclasses.replace(draft, tokenizer=tokenizer)
    size = str(tokenizer.vocab_size)
    check(model_drafter(other, 2), 'tokenizer', size, '11')
