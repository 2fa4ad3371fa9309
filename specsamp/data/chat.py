"""Chat templates: a conversation as the text that a model was trained on."""

import datetime
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

from specsamp.errors import UserError

_MAX_SECONDS = 1.0  # of the thread's CPU time, however busy the machine is
_MAX_CHARACTERS = 2**24  # of an answer, or entries of a list
_MAX_POWER, _MAX_BITS = 64, 2**16  # of numbers, which may be of any size


def render(
  template: str, messages: Sequence[dict[str, Any]], named: dict[str, str]
) -> str:
  """Renders a template as transformers does, up to the model's next turn.

  Templates come with weights from anywhere, so they run in a sandbox, and not
  for long: each round of a loop and each call checks the CPU time of the
  thread, which works in any thread.

  Args:
    template: of Jinja; '' is none.
    messages: turns, each with a role and its content.
    named: special tokens that it may write, such as `bos_token`.

  Raises:
    UserError: there is no template, it fails, it takes too long or writes too
      much, or jinja2 is missing.
  """
  if not template:
    raise UserError('chat: the tokenizer has no chat template')
  try:
    environment = _environment()
  except ImportError:
    raise UserError(
      "chat: templates need jinja2; pip install 'specsamp[hf]'"
    ) from None
  pieces, size = [], 0
  try:
    timed = environment.from_string(_timed(environment, template))
    for piece in timed.generate(
      messages=messages,
      tools=None,
      documents=None,
      add_generation_prompt=True,
      **named,
    ):
      pieces.append(piece)
      size += len(piece)
      if size > _MAX_CHARACTERS:
        raise UserError(f'writes more than {_MAX_CHARACTERS} characters')
    return ''.join(pieces)
  except Exception as error:  # whatever a template does
    reason = ' '.join(str(error).split()) or type(error).__name__
    raise UserError(f'chat template: {reason}') from None


def _timed(environment, template: str):
  """Returns a parsed template whose loops check the time in each round."""
  import jinja2.nodes

  parsed = environment.parse(template)
  for loop in parsed.find_all(jinja2.nodes.For):
    loop.iter = jinja2.nodes.Filter(loop.iter, 'timed', [], [], None, None)
  return parsed


def _environment():
  """Returns a sandbox for one template, with what transformers gives it."""
  import jinja2.ext
  import jinja2.sandbox

  end = time.thread_time() + _MAX_SECONDS

  class Generation(jinja2.ext.Extension):
    """Marks what a model writes, for training; here it is but a block."""

    tags = {'generation'}

    def parse(self, parser):
      line = next(parser.stream).lineno
      body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
      return jinja2.nodes.Scope(body, lineno=line)

  class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox that checks what may take long."""

    intercepted_binops = frozenset(['+', '*', '**'])

    def call(self, context, function, /, *args, **kwargs):
      check_time()
      return super().call(context, function, *args, **kwargs)

    def call_binop(self, context, operator, left, right):
      if operator == '**' and abs(right) > _MAX_POWER:
        raise_exception(f'power: got {right:g}, expected at most {_MAX_POWER}')
      sizes = [len(x) if hasattr(x, '__len__') else x for x in (left, right)]
      if sizes != [left, right]:  # sequences, which may get any length
        most = sizes[0] * sizes[1] if operator == '*' else sum(sizes)
        if most > _MAX_CHARACTERS:
          raise_exception(f'got {most} entries, at most {_MAX_CHARACTERS}')
      result = super().call_binop(context, operator, left, right)
      if isinstance(result, int) and result.bit_length() > _MAX_BITS:
        raise_exception(f'got a number of more than {_MAX_BITS} bits')
      return result

  def raise_exception(message):
    raise jinja2.TemplateError(message)

  def check_time():
    if time.thread_time() > end:
      raise_exception(f'takes longer than {_MAX_SECONDS:g} s')

  def timed(values: Iterable):
    for value in values:
      check_time()
      yield value

  environment = Environment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[Generation, 'jinja2.ext.loopcontrols'],
  )
  environment.filters['tojson'] = _to_json
  environment.filters['timed'] = timed
  environment.globals['raise_exception'] = raise_exception
  environment.globals['strftime_now'] = lambda form: (
    datetime.datetime.now().strftime(form)
  )
  return environment


def _to_json(value, ensure_ascii=False, indent=None, separators=None,
             sort_keys=False):  # fmt: skip
  """Jinja's own escapes what a browser would misread."""
  return json.dumps(
    value,
    ensure_ascii=ensure_ascii,
    indent=indent,
    separators=separators,
    sort_keys=sort_keys,
  )
