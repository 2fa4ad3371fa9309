"""Characters of tokens, whichever way they come."""

import random

import numpy as np
import pytest

from specsamp.decoding.state import Logprobs
from specsamp.serving.texts import Text, Vocabulary

_PROMPTS = ('def f():\n', 'x', 'naïve — ', '')


def _ids(tokenizer, rng, count):
  """Text, among it characters that take several tokens, and any tokens."""
  text = ''.join(rng.choice(['if ', 'self', '  ', '\n', '🙂', 'é', '—', 'ab'])
                 for _ in range(count))  # fmt: skip
  return tokenizer.encode(text, bos=False)


def _written(vocabulary, prompt, ids, rng, stops=(), top=None, logprobs=None):
  """The text in parts of any size, and the `Text`."""
  text, parts, start = Text(vocabulary, prompt, (), stops, top), [], 0
  while start < len(ids) and not text.is_stopped:
    end = min(start + rng.randint(1, 5), len(ids))
    text.add(ids[start:end], rng.randint(0, 2), logprobs and logprobs(start))
    is_last = text.is_stopped or end == len(ids)
    parts.append(text.take(is_last))
    start = end
  return ''.join(part.text for part in parts), text, parts


@pytest.mark.parametrize('prompt', _PROMPTS)
def test_characters_are_those_of_the_whole(tokenizer, prompt):
  rng = random.Random(len(prompt))
  vocabulary, before = Vocabulary(tokenizer), tokenizer.encode(prompt)
  for _ in range(20):
    ids = _ids(tokenizer, rng, 12)
    found, text, _ = _written(vocabulary, before, ids, rng)
    assert found == tokenizer.decode(ids, before)
    assert text.num_tokens == len(ids)


class _Stripping:
  """Whose texts lose the space of their first word; 0 has no characters."""

  def pieces(self):
    return ['', ' a', ' b']

  def decode(self, ids, after=()):
    text = lambda ids: ''.join(self.pieces()[i] for i in ids).lstrip(' ')
    return text([*after, *ids])[len(text(after)) :]


@pytest.mark.parametrize('prompt', [[1], [1] + [0] * 30, [1] * 40])
def test_a_space_stays_behind_a_prompt(prompt):
  ids = [2, 0, 0, 1, 1]
  found, *_ = _written(Vocabulary(_Stripping()), prompt, ids, random.Random(0))
  assert found == ' b a a'


def test_half_a_character_at_the_end(tokenizer):
  ids = tokenizer.encode('a🙂', bos=False)[:-2]
  found, _, parts = _written(Vocabulary(tokenizer), [], ids, random.Random(0))
  assert found == tokenizer.decode(ids)
  assert found[0] == 'a' and set(found[1:]) == {'\N{REPLACEMENT CHARACTER}'}
  assert all('\N{REPLACEMENT CHARACTER}' not in p.text for p in parts[:-1])


@pytest.mark.parametrize(
  'stops', [['f s'], ['é—', '🙂\n'], ['\n\n', ' a', 'b']]
)
def test_stop_strings_across_tokens(tokenizer, stops):
  rng = random.Random(1)
  vocabulary = Vocabulary(tokenizer)
  stopped = 0
  for _ in range(40):
    ids = _ids(tokenizer, rng, 15)
    whole = tokenizer.decode(ids)
    found, text, parts = _written(vocabulary, [], ids, rng, stops)
    places = [whole.find(s) for s in stops if s in whole]
    assert found == (whole[: min(places)] if places else whole)
    assert text.is_stopped == bool(places)
    stopped += text.is_stopped
    for part in parts:
      assert all(0 <= a < b <= len(part.text) for a, b in part.accepted)
  assert stopped > 5


def test_logprobs_go_with_their_characters(tokenizer):
  rng = random.Random(2)
  vocabulary = Vocabulary(tokenizer)
  ids = _ids(tokenizer, rng, 20)

  def logprobs(start):
    rows = np.arange(start, len(ids), dtype=np.float32)
    tops = np.asarray(ids[start:])[:, None]
    return Logprobs(-rows, -rows, tops, -rows[:, None])

  found, _, parts = _written(vocabulary, [], ids, rng, ['zzz'], 1, logprobs)
  got = [each for part in parts for each in part.logprobs]
  assert [each.logprob for each in got] == [-float(i) for i in range(len(ids))]
  octets = b''.join(bytes(each.bytes) for each in got)
  assert octets.decode() == found
  assert all(each.top[0].text == each.text for each in got)
  for each in got:
    if not each.text.startswith('bytes:') and len(each.bytes) < 3:
      assert found[each.offset :].startswith(each.text)
