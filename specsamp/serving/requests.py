"""Bodies of requests. Every field is either obeyed or refused by its name."""

import dataclasses
import itertools
import json
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pydantic
import pydantic_core
from pydantic import Field

from specsamp.data import chat
from specsamp.decoding.engine import Engine
from specsamp.errors import UserError
from specsamp.sampling.transforms import SamplingParams
from specsamp.serving.errors import ApiError

MAX_CHOICES = 128  # of one request
_MAX_SEED = 2**31 - 1 - MAX_CHOICES
_DEFAULT_MAX_TOKENS = 16  # OpenAI's, for a completion
_TOO_LONG = 'context_length_exceeded'

# Fields that clients send and that do not change a completion.
HARMLESS = (
  'user',
  'metadata',
  'store',
  'service_tier',
  'safety_identifier',
  'prompt_cache_key',
  'parallel_tool_calls',
)
# Fields that would change a completion, with the values that do not.
NEUTRAL = {
  'frequency_penalty': (0,),
  'presence_penalty': (0,),
  'repetition_penalty': (1,),
  'logit_bias': ({},),
  'echo': (False,),
  'suffix': ('',),
  'tools': ([],),
  'functions': ([],),
  'tool_choice': ('none', 'auto'),  # without tools
  'function_call': ('none', 'auto'),
  'response_format': ({'type': 'text'},),
  'modalities': (['text'],),
}


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits of a request.

  Attributes:
    model: name of the served model.
    engine: engine that decodes. Its `max_length` and `logprobs` are limits too.
    max_new_tokens: upper bound on the tokens of a completion.
    max_choices: upper bound on the choices of a request, over all its prompts.
    chat_template_kwargs: variables of the chat template, each for requests that
      do not set it.
  """

  model: str
  engine: Engine
  max_new_tokens: int
  max_choices: int
  chat_template_kwargs: Mapping[str, Any]


class _Strict(pydantic.BaseModel):
  """JSON object without unknown fields; null is an absent field."""

  model_config = pydantic.ConfigDict(extra='forbid', strict=True)

  @pydantic.model_validator(mode='before')
  @classmethod
  def _drop_nulls(cls, values: Any) -> Any:
    if not isinstance(values, dict):
      return values
    return {name: val for name, val in values.items() if val is not None}


class _StreamOptions(_Strict):
  include_usage: bool = False
  include_accepted: bool = False
  include_obfuscation: bool = False  # accepted, has no effect


class Request(_Strict):
  """Fields that completions and chat completions share.

  `parse` fills in `seed`, `max_tokens` and `prompts`, lists of token ids.
  `num_alternatives` is the number of log-probabilities per token, or None.
  """

  is_chat: ClassVar[bool]
  prompt_field: ClassVar[str]

  model: str | None = None
  n: int = Field(1, ge=1)  # samples per prompt
  best_of: int | None = None
  max_tokens: int | None = Field(None, ge=1)
  temperature: float = Field(1.0, ge=0, le=1e6)
  top_p: float = Field(1.0, gt=0, le=1)
  top_k: int = Field(0, ge=-1, lt=2**31)
  min_p: float = Field(0.0, ge=0, lt=1)
  seed: int | None = Field(None, ge=0, le=_MAX_SEED)  # choice i has seed + i
  stop: list[pydantic.constr(min_length=1, max_length=256)] = Field(
    [], max_length=16
  )
  ignore_eos: bool = False
  stream: bool = False
  stream_options: _StreamOptions = _StreamOptions()

  _prompts: list[list[int]]

  @pydantic.model_validator(mode='before')
  @classmethod
  def _drop_neutral(cls, values: Any) -> Any:
    if not isinstance(values, dict):
      return values
    for name, neutral in NEUTRAL.items():
      if values.get(name) is not None and values[name] not in neutral:
        raise ApiError(
          f'{name}: only {json.dumps(neutral[0])} is supported', param=name
        )
    skipped = {*NEUTRAL, *HARMLESS}
    return {name: val for name, val in values.items() if name not in skipped}

  @pydantic.field_validator('stop', mode='before')
  @classmethod
  def _list_stop(cls, stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop

  @property
  def prompts(self) -> list[list[int]]:
    return self._prompts

  @property
  def num_choices(self) -> int:
    return self.n * len(self.prompts)

  @property
  def num_prompt_tokens(self) -> int:
    return sum(map(len, self.prompts))

  @property
  def sampling(self) -> SamplingParams:
    return SamplingParams(
      temperature=self.temperature,
      top_k=max(self.top_k, 0),
      top_p=self.top_p,
      min_p=self.min_p,
    )


class Completion(Request):
  """Body of /v1/completions."""

  is_chat = False
  prompt_field = 'prompt'

  prompt: list[Any]
  logprobs: int | None = Field(None, ge=0)

  @pydantic.field_validator('prompt', mode='before')
  @classmethod
  def _list_prompts(cls, prompt: Any) -> list[str | list[int]]:
    def is_prompt(value):
      is_ids = isinstance(value, list) and {type(id_) for id_ in value} == {int}
      return isinstance(value, str) or is_ids

    prompts = [prompt] if is_prompt(prompt) else prompt
    is_list = isinstance(prompts, list) and prompts
    if not is_list or not all(map(is_prompt, prompts)):
      raise ValueError('expected a string, token ids, or a list of these')
    return prompts

  @property
  def num_alternatives(self) -> int | None:
    return self.logprobs

  def encode(self, limits: Limits) -> list[list[int]]:
    """Returns the token ids of each prompt."""
    tokenizer = limits.engine.model.tokenizer
    return [
      tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
      for prompt in self.prompt
    ]


class _TextPart(pydantic.BaseModel):
  model_config = pydantic.ConfigDict(strict=True)

  type: Literal['text']
  text: str


class _Message(_Strict):
  role: str = Field(min_length=1)
  content: list[_TextPart]
  name: str | None = None

  @pydantic.field_validator('content', mode='before')
  @classmethod
  def _list_content(cls, content: Any) -> Any:
    is_text = isinstance(content, str)
    return [{'type': 'text', 'text': content}] if is_text else content

  def turn(self) -> dict[str, str]:
    """Returns the message for a chat template."""
    content = ''.join(part.text for part in self.content)
    name = {'name': self.name} if self.name else {}
    return {'role': self.role, 'content': content} | name


class Chat(Request):
  """Body of /v1/chat/completions."""

  is_chat = True
  prompt_field = 'messages'

  messages: list[_Message] = Field(min_length=1)
  max_completion_tokens: int | None = Field(None, ge=1)
  logprobs: bool = False
  top_logprobs: int | None = Field(None, ge=0)
  chat_template_kwargs: dict[str, Any] = {}  # vLLM's and SGLang's name

  @pydantic.field_validator('chat_template_kwargs')
  @classmethod
  def _check_variables(cls, variables: dict[str, Any]) -> dict[str, Any]:
    chat.check_variables(variables)
    return variables

  @property
  def num_alternatives(self) -> int | None:
    return (self.top_logprobs or 0) if self.logprobs else None

  def encode(self, limits: Limits) -> list[list[int]]:
    """Returns the token ids of the conversation."""
    tokenizer = limits.engine.model.tokenizer
    variables = {**limits.chat_template_kwargs, **self.chat_template_kwargs}
    turns = [message.turn() for message in self.messages]
    text = tokenizer.chat(turns, **variables)
    return [tokenizer.encode(text, bos=False)]  # the template writes it


def parse(content: bytes, is_chat: bool, limits: Limits) -> Request:
  """Parses the body of a request, and checks all that the engine does not.

  Raises:
    ApiError: the body is not JSON, or a field is wrong.
  """
  try:
    values = pydantic_core.from_json(content, allow_inf_nan=False)
  except ValueError:
    raise ApiError('body: not valid JSON') from None
  try:
    request = (Chat if is_chat else Completion).model_validate(values)
  except pydantic.ValidationError as error:
    raise _api_error(error) from None
  if request.model not in (None, limits.model):
    raise ApiError(
      f'model: got {request.model!r}, expected {limits.model!r}',
      status=404,
      param='model',
      code='model_not_found',
    )
  if request.best_of not in (None, request.n):
    raise ApiError('best_of: only the value of n is supported', param='best_of')
  _check_logprobs(request, limits.engine.logprobs)
  try:
    request._prompts = request.encode(limits)
  except UserError as error:  # of the tokenizer or its chat template
    raise ApiError(str(error)) from None
  if request.num_choices > limits.max_choices:
    raise ApiError(
      f'got {len(request.prompts)} prompts of {request.n} samples, expected at '
      f'most {limits.max_choices} choices',
      param='n' if request.n > limits.max_choices else request.prompt_field,
    )
  request.max_tokens = _max_tokens(request, limits)
  if request.seed is None:
    request.seed = secrets.randbelow(_MAX_SEED)
  return request


def _api_error(error: pydantic.ValidationError) -> ApiError:
  """Returns the first error; its `param` is the field without list indices."""
  first = error.errors(include_url=False, include_context=False)[0]
  names = itertools.takewhile(lambda part: type(part) is str, first['loc'])
  place = '.'.join(map(str, first['loc'])) or 'body'
  message = first['msg'].removeprefix('Value error, ')
  if first['type'] == 'extra_forbidden':
    message = 'unknown, or not supported'
  elif type(first['input']) in (bool, int, float, str):
    message = f'got {json.dumps(first["input"]):.80}. {message}'
  return ApiError(f'{place}: {message}', param='.'.join(names) or None)


def _check_logprobs(request: Request, maximum: int | None) -> None:
  param = 'top_logprobs' if request.is_chat else 'logprobs'
  count = request.num_alternatives
  if request.is_chat and request.top_logprobs is not None and count is None:
    raise ApiError('top_logprobs: expected logprobs: true', param=param)
  if count is not None and maximum is None:
    raise ApiError('logprobs: not served', param='logprobs')
  if count is not None and count > maximum:
    raise ApiError(
      f'{param}: got {count}, expected at most {maximum}', param=param
    )


def _max_tokens(request: Request, limits: Limits) -> int:
  lengths = [len(prompt) for prompt in request.prompts]
  length, max_length = max(lengths), limits.engine.max_length
  if not min(lengths) or length >= max_length:
    raise ApiError(
      f'{request.prompt_field}: got {min(lengths)} to {length} tokens, '
      f'expected 1 to {max_length - 1}',
      param=request.prompt_field,
      code=_TOO_LONG if length >= max_length else None,
    )
  maximum = min(limits.max_new_tokens, max_length - length)
  param = 'max_tokens'
  if request.is_chat and request.max_completion_tokens is not None:
    param = 'max_completion_tokens'  # its newer name
  max_tokens = getattr(request, param)
  if max_tokens is None:
    return maximum if request.is_chat else min(_DEFAULT_MAX_TOKENS, maximum)
  if max_tokens > maximum:
    raise ApiError(
      f'{param}: got {max_tokens}, expected at most {maximum} after a prompt '
      f'of {length} tokens',
      param=param,
      code=_TOO_LONG if length + maximum == max_length else None,
    )
  return max_tokens
