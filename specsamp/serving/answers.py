"""The objects that answer requests, field by field as OpenAI's clients do."""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from specsamp.serving.texts import Piece, TokenLogprob
from specsamp.serving.worker import Part, Ticket


def dumps(value: Any) -> bytes:
  """JSON in ASCII, which has room for half a surrogate too."""
  return json.dumps(value, allow_nan=False, separators=(',', ':')).encode()


def models(name: str, created: int) -> dict[str, Any]:
  """The list of the one model that is served."""
  one = {'id': name, 'object': 'model', 'created': created}
  return {'object': 'list', 'data': [one | {'owned_by': 'specsamp'}]}


class Answer:
  """What answers a request, whole or in chunks."""

  def __init__(self, model: str, ticket: Ticket, marks: bool):
    """Begins it.

    Args:
      model: the name that is served.
      ticket: of the request.
      marks: whether it is known which characters were drafted.
    """
    asked = self._asked = ticket.asked
    self._ticket = ticket
    self._marks = marks
    kind = 'chat.completion' if asked.is_chat else 'text_completion'
    if asked.is_chat and asked.streams:
      kind += '.chunk'
    prefix = 'chatcmpl' if asked.is_chat else 'cmpl'
    self._head = {
      'id': f'{prefix}-{uuid.uuid4().hex}',
      'object': kind,
      'created': int(time.time()),
      'model': model,
    }

  def whole(self, parts: Sequence[Part]) -> dict[str, Any]:
    """All of it.

    Args:
      parts: of all choices, in the order in which they came.
    """
    by_index = [[] for _ in range(self._asked.num_texts)]
    for part in parts:
      by_index[part.index].append(part)
    choices = []
    for index, own in enumerate(by_index):
      text = ''.join(part.piece.text for part in own)
      logprobs = [each for part in own for each in part.piece.logprobs]
      content = {'text': text}
      if self._asked.is_chat:
        content = {'message': {'role': 'assistant', 'content': text}}
      choices.append(
        self._choice(index, content, logprobs, own[-1].finish_reason)
      )
    return self._head | {'choices': choices, 'usage': self._usage()}

  def opening(self) -> list[dict[str, Any]]:
    """The chunks before the first token: of a chat, who speaks."""
    if not self._asked.is_chat:
      return []
    content = {'delta': {'role': 'assistant', 'content': ''}}
    return [
      self._chunk([self._choice(index, content, [], None)])
      for index in range(self._asked.num_texts)
    ]

  def chunk(self, part: Part) -> dict[str, Any]:
    """What is new of a choice."""
    piece: Piece = part.piece
    content = {'text': piece.text}
    if self._asked.is_chat:
      content = {'delta': {'content': piece.text} if piece.text else {}}
    choice = self._choice(
      part.index, content, piece.logprobs, part.finish_reason
    )
    if self._asked.includes_accepted:
      choice['accepted'] = piece.accepted if self._marks else None
      choice['block_efficiency'] = part.block_efficiency
    return self._chunk([choice])

  def counts(self) -> dict[str, Any]:
    """The chunk that ends a stream with its usage."""
    return self._chunk([]) | {'usage': self._usage()}

  def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
    usage = {'usage': None} if self._asked.includes_usage else {}
    return self._head | {'choices': choices} | usage

  def _choice(
    self,
    index: int,
    content: dict[str, Any],
    logprobs: Sequence[TokenLogprob],
    finish_reason: str | None,
  ) -> dict[str, Any]:
    found = None
    if self._asked.top_logprobs is not None:
      found = _of_chat(logprobs) if self._asked.is_chat else _of_text(logprobs)
    choice = {'index': index} | content
    return choice | {'logprobs': found, 'finish_reason': finish_reason}

  def _usage(self) -> dict[str, Any]:
    """Counts of tokens; accepted draft tokens stand where predicted ones do."""
    prompt, output = self._asked.num_prompt_tokens, self._ticket.num_tokens
    accepted = {'accepted_prediction_tokens': self._ticket.num_accepted}
    return {
      'prompt_tokens': prompt,
      'completion_tokens': output,
      'total_tokens': prompt + output,
      'completion_tokens_details': accepted,
    }


def _of_text(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
  def top(each: TokenLogprob) -> dict[str, float]:
    # The most probable first; of tokens of one text, the more probable one.
    found = {}
    for other in (*each.top, each):
      found.setdefault(other.text, other.logprob)
    return found

  return {
    'tokens': [each.text for each in logprobs],
    'token_logprobs': [each.logprob for each in logprobs],
    'top_logprobs': [top(each) for each in logprobs],
    'text_offset': [each.offset for each in logprobs],
  }


def _of_chat(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
  def token(each: TokenLogprob) -> dict[str, Any]:
    return {'token': each.text, 'bytes': each.bytes, 'logprob': each.logprob}

  content = [
    token(each) | {'top_logprobs': [token(other) for other in each.top]}
    for each in logprobs
  ]
  return {'content': content, 'refusal': None}
