"""JSON objects of responses, with the fields of OpenAI's clients."""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from specsamp.serving.detokenize import TokenLogprob
from specsamp.serving.worker import ActiveRequest, ChoiceDelta


def dumps(value: Any) -> bytes:
  """Returns JSON in ASCII, which can hold half a surrogate too."""
  return json.dumps(value, allow_nan=False, separators=(',', ':')).encode()


class Builder:
  """Builder of the response to a request, whole or in chunks."""

  def __init__(self, model: str, active: ActiveRequest, has_marks: bool):
    """Starts a response of the model with this name.

    `has_marks` is True if it is known which characters were drafted.
    """
    request = self._request = active.request
    self._active = active
    self._has_marks = has_marks
    kind = 'chat.completion' if request.is_chat else 'text_completion'
    if request.is_chat and request.stream:
      kind += '.chunk'
    prefix = 'chatcmpl' if request.is_chat else 'cmpl'
    self._head = {
      'id': f'{prefix}-{uuid.uuid4().hex}',
      'object': kind,
      'created': int(time.time()),
      'model': model,
    }

  def whole(self, deltas: Sequence[ChoiceDelta]) -> dict[str, Any]:
    """Returns the whole response from the deltas of all choices."""
    choices = []
    for index in range(self._request.num_choices):
      row = [each for each in deltas if each.index == index]
      text = ''.join(each.delta.text for each in row)
      logprobs = [token for each in row for token in each.delta.logprobs]
      content = {'text': text}
      if self._request.is_chat:
        content = {'message': {'role': 'assistant', 'content': text}}
      choices.append(
        self._choice(index, content, logprobs, row[-1].finish_reason)
      )
    return self._head | {'choices': choices, 'usage': self._usage()}

  def opening(self) -> list[dict[str, Any]]:
    """Returns the chunks before the first token: in a chat, the role."""
    if not self._request.is_chat:
      return []
    content = {'delta': {'role': 'assistant', 'content': ''}}
    return [
      self._chunk([self._choice(index, content, [], None)])
      for index in range(self._request.num_choices)
    ]

  def chunk(self, choice_delta: ChoiceDelta) -> dict[str, Any]:
    delta = choice_delta.delta
    content = {'text': delta.text}
    if self._request.is_chat:
      content = {'delta': {'content': delta.text} if delta.text else {}}
    choice = self._choice(
      choice_delta.index, content, delta.logprobs, choice_delta.finish_reason
    )
    if self._request.stream_options.include_accepted:
      choice['accepted'] = delta.accepted if self._has_marks else None
      choice['block_efficiency'] = choice_delta.block_efficiency
    return self._chunk([choice])

  def usage_chunk(self) -> dict[str, Any]:
    return self._chunk([]) | {'usage': self._usage()}

  def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
    chunk = self._head | {'choices': choices}
    if self._request.stream_options.include_usage:
      chunk['usage'] = None
    return chunk

  def _choice(
    self,
    index: int,
    content: dict[str, Any],
    logprobs: Sequence[TokenLogprob],
    finish_reason: str | None,
  ) -> dict[str, Any]:
    logprobs_object = None
    if self._request.num_alternatives is not None:
      to_object = _chat_logprobs if self._request.is_chat else _text_logprobs
      logprobs_object = to_object(logprobs)
    choice = {'index': index} | content
    return choice | {
      'logprobs': logprobs_object,
      'finish_reason': finish_reason,
    }

  def _usage(self) -> dict[str, Any]:
    """Returns token counts, with draft tokens as OpenAI's prediction tokens."""
    texts = [choice.text for choice in self._active.choices]
    num_prompt = self._request.num_prompt_tokens
    num_output = sum(text.num_tokens for text in texts)
    num_accepted = sum(text.num_accepted for text in texts)
    return {
      'prompt_tokens': num_prompt,
      'completion_tokens': num_output,
      'total_tokens': num_prompt + num_output,
      'prompt_tokens_details': {'cached_tokens': self._active.num_reused},
      'completion_tokens_details': {'accepted_prediction_tokens': num_accepted},
    }


def _text_logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
  def top(token: TokenLogprob) -> dict[str, float]:
    # The most probable comes first, and stays if another has the same text.
    top_logprobs = {}
    for other in (*token.top, token):
      top_logprobs.setdefault(other.text, other.logprob)
    return top_logprobs

  return {
    'tokens': [token.text for token in logprobs],
    'token_logprobs': [token.logprob for token in logprobs],
    'top_logprobs': [top(token) for token in logprobs],
    'text_offset': [token.offset for token in logprobs],
  }


def _chat_logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
  def entry(token: TokenLogprob) -> dict[str, Any]:
    return {'token': token.text, 'bytes': token.bytes, 'logprob': token.logprob}

  content = [
    entry(token) | {'top_logprobs': [entry(other) for other in token.top]}
    for token in logprobs
  ]
  return {'content': content, 'refusal': None}
