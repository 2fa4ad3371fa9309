"""Characters of tokens, for bursts of any size."""

import random

import numpy as np
import pytest

from specsamp.decoding.state import Logprobs
from specsamp.serving.detokenize import CompletionText


def _ids(tokenizer, rng, count):
  """Returns tokens of a text with characters that take several tokens."""
  text = ''.join(rng.choice(['if ', 'self', '  ', '\n', '🙂', 'é', '—', 'ab'])
                 for _ in range(count))  # fmt: skip
  return tokenizer.encode(text, bos=False)


def _written(tokenizer, prompt, ids, rng, stops=(), top=None, logprobs=None):
  """Returns the text, the `CompletionText`, and its deltas of random bursts."""
  text, deltas, start = (
    CompletionText(tokenizer, prompt, (), stops, top), [], 0
  )  # fmt: skip
  while start < len(ids) and not text.is_stopped:
    end = min(start + rng.randint(1, 5), len(ids))
    text.add(ids[start:end], rng.randint(0, 2), logprobs and logprobs(start))
    is_last = text.is_stopped or end == len(ids)
    deltas.append(text.take(is_last))
    start = end
  return ''.join(delta.text for delta in deltas), text, deltas


@pytest.mark.parametrize('prompt', ['def f():\n', 'naïve — ', ''])
def test_characters_are_those_of_the_whole(tokenizer, prompt):
  rng = random.Random(len(prompt))
  context = tokenizer.encode(prompt)
  for _ in range(20):
    ids = _ids(tokenizer, rng, 12)[: rng.randint(-3, -1)]
    characters, text, _ = _written(tokenizer, context, ids, rng)
    assert characters == tokenizer.decode(ids, context)
    assert text.num_tokens == len(ids)


class _Stripping:
  """Tokenizer whose texts lose their first space; 0 has no characters."""

  def pieces(self):
    return ['', ' a', ' b']

  def decode(self, ids, after=()):
    text = lambda ids: ''.join(self.pieces()[i] for i in ids).lstrip(' ')
    return text([*after, *ids])[len(text(after)) :]


@pytest.mark.parametrize('prompt', [[1], [1] + [0] * 30, [1] * 40])
def test_a_space_stays_behind_a_prompt(prompt):
  ids = [2, 0, 0, 1, 1]
  text, *_ = _written(_Stripping(), prompt, ids, random.Random(0))
  assert text == ' b a a'


@pytest.mark.parametrize(
  'stops', [['f s'], ['é—', '🙂\n'], ['\n\n', ' a', 'b']]
)
def test_stop_strings_across_tokens(tokenizer, stops):
  rng = random.Random(1)
  num_stopped = 0
  for _ in range(40):
    ids = _ids(tokenizer, rng, 15)
    whole = tokenizer.decode(ids)
    characters, text, deltas = _written(tokenizer, [], ids, rng, stops)
    places = [whole.find(s) for s in stops if s in whole]
    assert characters == (whole[: min(places)] if places else whole)
    assert text.is_stopped == bool(places)
    num_stopped += text.is_stopped
    for delta in deltas:
      assert all(0 <= a < b <= len(delta.text) for a, b in delta.accepted)
  assert num_stopped > 5


def test_logprobs_go_with_their_characters(tokenizer):
  rng = random.Random(2)
  ids = _ids(tokenizer, rng, 20)

  def logprobs(start):
    rows = np.arange(start, len(ids), dtype=np.float32)
    tops = np.asarray(ids[start:])[:, None]
    return Logprobs(-rows, -rows, tops, -rows[:, None])

  text, _, deltas = _written(tokenizer, [], ids, rng, ['zzz'], 1, logprobs)
  tokens = [token for delta in deltas for token in delta.logprobs]
  assert [token.logprob for token in tokens] == [
    -float(i) for i in range(len(ids))
  ]
  assert b''.join(bytes(token.bytes) for token in tokens).decode() == text
  assert all(token.top[0].text == token.text for token in tokens)
  for token in tokens:
    if not token.text.startswith('bytes:') and len(token.bytes) < 3:
      assert text[token.offset :].startswith(token.text)
