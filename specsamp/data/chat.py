"""Chat templates: render a conversation as the text a model was trained on."""

import datetime
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

from specsamp.errors import UserError

_MAX_SECONDS = 1.0  # of the thread's CPU time, whatever else the machine does
_MAX_CHARACTERS = 2**24  # of the result, or entries of a list
_MAX_POWER, _MAX_BITS = 64, 2**16  # of exponents and of integers


def render(
  template: str, messages: Sequence[dict[str, Any]], named: dict[str, str]
) -> str:
  """Renders a template as transformers does, up to the model's next turn.

  Templates come with weights from anywhere, so they run in a sandbox with time
  and size limits. Every loop iteration and every call checks the thread's CPU
  time, which works in any thread.

  Args:
    template: Jinja source, or ''.
    messages: turns, each with a role and its content.
    named: special tokens that the template may write, such as `bos_token`.

  Raises:
    UserError: the template is empty, fails, or exceeds a limit; or jinja2 is
      not installed.
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
    timed = environment.from_string(_with_timed_loops(environment, template))
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
  except Exception as error:  # a template can raise anything
    reason = ' '.join(str(error).split()) or type(error).__name__
    raise UserError(f'chat template: {reason}') from None


def _with_timed_loops(environment, template: str):
  """Parses a template and adds a check of the time to each loop iteration."""
  import jinja2.nodes

  parsed = environment.parse(template)
  for loop in parsed.find_all(jinja2.nodes.For):
    loop.iter = jinja2.nodes.Filter(loop.iter, 'timed', [], [], None, None)
  return parsed


def _environment():
  """Returns a sandbox for one rendering, with the globals of transformers."""
  import jinja2.ext
  import jinja2.sandbox

  end = time.thread_time() + _MAX_SECONDS

  class Generation(jinja2.ext.Extension):
    """Block that marks text of the model, which matters for training only."""

    tags = {'generation'}

    def parse(self, parser):
      line = next(parser.stream).lineno
      body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
      return jinja2.nodes.Scope(body, lineno=line)

  class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Sandbox that limits the time of calls and the size of results."""

    intercepted_binops = frozenset(['+', '*', '**'])

    def call(self, context, function, /, *args, **kwargs):
      check_time()
      return super().call(context, function, *args, **kwargs)

    def call_binop(self, context, operator, left, right):
      if operator == '**' and abs(right) > _MAX_POWER:
        raise_exception(f'power: got {right:g}, expected at most {_MAX_POWER}')
      sizes = [len(x) if hasattr(x, '__len__') else x for x in (left, right)]
      if sizes != [left, right]:  # a sequence
        size = sizes[0] * sizes[1] if operator == '*' else sum(sizes)
        if size > _MAX_CHARACTERS:
          raise_exception(f'got {size} entries, at most {_MAX_CHARACTERS}')
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

  def to_json(value, ensure_ascii=False, **options):
    # Jinja's filter escapes characters for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)

  environment = Environment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[Generation, 'jinja2.ext.loopcontrols'],
  )
  environment.filters |= {'tojson': to_json, 'timed': timed}
  environment.globals |= {
    'raise_exception': raise_exception,
    'strftime_now': lambda form: datetime.datetime.now().strftime(form),
  }
  return environment
