"""The bodies of requests, checked: nothing that is asked for is ignored.

A field that is not known here, or a value that would change what is drawn and
cannot be granted, is refused by its name.
"""

import dataclasses
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from specsamp.errors import UserError
from specsamp.sampling.transforms import SamplingParams
from specsamp.serving.fields import Fields, kind, parse
from specsamp.serving.refusals import Refusal

_MOST_STOPS, _LONGEST_STOP = 16, 256
_MOST_SEED = 2**31 - 1
_SHORT = 16  # new tokens of a completion that does not say, as at OpenAI


class Limits(NamedTuple):
  """What a request may ask for.

  Attributes:
    model: the name that is served.
    tokenizer: the target's.
    num_tokens: of the target's vocabulary.
    max_length: of a prompt with its new tokens.
    max_new_tokens: of one text.
    most_texts: of one request, over all its prompts.
    logprobs: alternatives of a token; None if there are no log-probabilities.
  """

  model: str
  tokenizer: Any
  num_tokens: int
  max_length: int
  max_new_tokens: int
  most_texts: int
  logprobs: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
  """A request that can be granted.

  Attributes:
    is_chat: whether the answer is a message, and not a text.
    prompts: token ids of each.
    n: samples of each prompt.
    max_tokens: new ones of each sample.
    sampling: scalars.
    seed: choice i draws from `seed + i`.
    stops: strings that end a text, and are left out of it.
    ignores_eos: whether stop tokens end none.
    top_logprobs: alternatives of each token; None is no log-probabilities.
    streams: whether the text is sent as it comes.
    includes_usage: whether a stream ends with its counts.
    includes_accepted: whether a stream marks the accepted draft tokens.
  """

  is_chat: bool
  prompts: Sequence[Sequence[int]]
  n: int
  max_tokens: int
  sampling: SamplingParams
  seed: int
  stops: tuple[str, ...]
  ignores_eos: bool
  top_logprobs: int | None
  streams: bool
  includes_usage: bool
  includes_accepted: bool

  @property
  def num_texts(self) -> int:
    return self.n * len(self.prompts)

  @property
  def num_prompt_tokens(self) -> int:
    return sum(map(len, self.prompts))


def read(content: bytes, is_chat: bool, limits: Limits) -> Asked:
  """Reads the body of a request.

  Args:
    content: JSON.
    is_chat: whether it is a conversation.
    limits: see there.

  Raises:
    Refusal: what is wrong with it, in one line.
  """
  fields = Fields(parse(content))
  model = fields.text('model', limits.model)
  if model != limits.model:
    raise Refusal(
      f'model: got {model!r}, expected {limits.model!r}',
      status=404,
      param='model',
      code='model_not_found',
    )
  try:
    return _read(fields, is_chat, limits)
  except UserError as error:
    raise Refusal(str(error)) from None


def _read(fields: Fields, is_chat: bool, limits: Limits) -> Asked:
  n = fields.integer('n', 1, 1, limits.most_texts)
  fields.integer('best_of', n, n, n)
  streams = fields.flag('stream')
  options = Fields(fields.object('stream_options'), 'stream_options.')
  includes_usage = options.flag('include_usage')
  includes_accepted = options.flag('include_accepted')
  options.flag('include_obfuscation')
  options.done()
  common = dict(
    is_chat=is_chat,
    n=n,
    sampling=_sampling(fields),
    stops=_stops(fields),
    ignores_eos=fields.flag('ignore_eos'),
    top_logprobs=_top_logprobs(fields, is_chat, limits),
    streams=streams,
    includes_usage=includes_usage,
    includes_accepted=includes_accepted,
  )
  seed = fields.integer('seed', -1, 0, _MOST_SEED - limits.most_texts)
  budget = fields.integer('max_tokens', 0, 1, limits.max_new_tokens)
  if is_chat:  # the newer name goes first
    budget = fields.integer(
      'max_completion_tokens', budget, 1, limits.max_new_tokens
    )
  asks = fields.take('messages' if is_chat else 'prompt')
  fields.done()  # before the prompts, which take long
  if is_chat:
    prompts = [_conversation(asks, limits)]
  else:
    prompts = _prompts(asks, limits)
  if n * len(prompts) > limits.most_texts:
    raise Refusal(
      f'prompt: got {len(prompts)} of {n} samples each, expected at most '
      f'{limits.most_texts} texts',
      param='prompt',
    )
  if seed < 0:
    seed = secrets.randbelow(_MOST_SEED - limits.most_texts)
  budget = _budget(budget, prompts, is_chat, limits)
  return Asked(prompts=prompts, max_tokens=budget, seed=seed, **common)


def _sampling(fields: Fields) -> SamplingParams:
  top_k = fields.integer('top_k', 0, -1, _MOST_SEED)
  sampling = SamplingParams(
    temperature=fields.number('temperature', 1.0),
    top_k=max(top_k, 0),
    top_p=fields.number('top_p', 1.0),
    min_p=fields.number('min_p', 0.0),
  )
  try:
    sampling.check()
  except ValueError as error:
    param = str(error).split(':')[0]
    raise Refusal(str(error), param=param) from None
  return sampling


def _stops(fields: Fields) -> tuple[str, ...]:
  stops = fields.take('stop', [])
  stops = [stops] if isinstance(stops, str) else stops
  is_good = lambda s: isinstance(s, str) and 0 < len(s) <= _LONGEST_STOP
  if (
    not isinstance(stops, list)
    or len(stops) > _MOST_STOPS
    or not all(map(is_good, stops))
  ):
    fields.refuse(
      'stop',
      stops,
      f'at most {_MOST_STOPS} texts of 1 to {_LONGEST_STOP} characters',
    )
  return tuple(stops)


def _top_logprobs(fields: Fields, is_chat: bool, limits: Limits) -> int | None:
  most = -1 if limits.logprobs is None else limits.logprobs
  if is_chat:
    wants = fields.flag('logprobs')
    top = fields.integer('top_logprobs', -1, 0, max(most, 0))
    if top >= 0 and not wants:
      fields.refuse('top_logprobs', top, 'logprobs: true with it')
    top = max(top, 0) if wants else None
  else:
    top = fields.integer('logprobs', -1, 0, max(most, 0))
    top = None if top < 0 else top
  if top is not None and most < 0:
    raise Refusal('logprobs: this server has none', param='logprobs')
  return top


def _prompts(asks: Any, limits: Limits) -> list[list[int]]:
  """The token ids of one prompt or several, texts or ids."""
  is_ids = lambda value: (
    isinstance(value, list) and value and all(type(i) is int for i in value)
  )
  if isinstance(asks, str) or is_ids(asks):
    asks = [asks]
  if not isinstance(asks, list) or not 0 < len(asks) <= limits.most_texts:
    raise Refusal(
      f'prompt: got {kind(asks)}, expected a text, token ids, or 1 to '
      f'{limits.most_texts} of these',
      param='prompt',
    )
  found = []
  for i, ask in enumerate(asks):
    if isinstance(ask, str):
      ask = limits.tokenizer.encode(ask)
    elif not is_ids(ask):
      raise Refusal(
        f'prompt {i}: got {kind(ask)}, expected a text or token ids',
        param='prompt',
      )
    found.append(_checked(ask, 'prompt', limits))
  return found


def _checked(ids: list[int], param: str, limits: Limits) -> list[int]:
  if not ids:
    raise Refusal(f'{param}: has no token, expected at least one', param=param)
  if len(ids) >= limits.max_length:
    raise Refusal(
      f'{param}: got {len(ids)} tokens, expected at most '
      f'{limits.max_length - 1}',
      param=param,
      code='context_length_exceeded',
    )
  last = limits.num_tokens - 1
  for id_ in min(ids), max(ids):
    if not 0 <= id_ <= last:
      raise Refusal(
        f'{param}: got the token {id_}, expected 0 to {last}', param=param
      )
  return ids


def _conversation(messages: Any, limits: Limits) -> list[int]:
  """The token ids that ask for the next turn."""
  if not isinstance(messages, list) or not messages:
    raise Refusal(
      f'messages: got {kind(messages)}, expected a list of turns',
      param='messages',
    )
  turns = [_turn(i, message) for i, message in enumerate(messages)]
  text = limits.tokenizer.chat(turns)
  # The template has written what begins a text.
  return _checked(limits.tokenizer.encode(text, bos=False), 'messages', limits)


def _turn(i: int, message: Any) -> dict[str, str]:
  where = f'messages[{i}]'
  if not isinstance(message, dict):
    raise Refusal(
      f'{where}: got {kind(message)}, expected an object', param='messages'
    )
  fields = Fields(message, f'{where}.')
  role = fields.text('role', '')
  if not role:
    fields.refuse('role', role, 'system, user or assistant')
  content = fields.take('content')
  if isinstance(content, list):
    content = ''.join(_part(where, part) for part in content)
  if not isinstance(content, str):
    fields.refuse('content', content, 'a text')
  name = fields.text('name', '')
  fields.done()
  return {'role': role, 'content': content} | ({'name': name} if name else {})


def _part(where: str, part: Any) -> str:
  text = part.get('text') if isinstance(part, dict) else None
  if not isinstance(text, str) or part.get('type') != 'text':
    raise Refusal(
      f'{where}.content: got a part that is no text, expected text',
      param='messages',
    )
  return text


def _budget(
  budget: int, prompts: list[list[int]], is_chat: bool, limits: Limits
) -> int:
  """New tokens of each text."""
  room = limits.max_length - max(map(len, prompts))
  if not budget:
    budget = limits.max_new_tokens if is_chat else _SHORT
    budget = min(budget, limits.max_new_tokens, room)
  if budget > room:
    longest = max(map(len, prompts))
    raise Refusal(
      f'max_tokens: got {budget}, with the {longest} of the prompt more than '
      f'{limits.max_length}',
      param='max_tokens',
      code='context_length_exceeded',
    )
  return budget
