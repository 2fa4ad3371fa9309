"""Chat templates: a conversation as the text that a model was trained on."""

import datetime
import json
from collections.abc import Sequence
from typing import Any

from specsamp.errors import UserError


def render(
  template: str, messages: Sequence[dict[str, Any]], named: dict[str, str]
) -> str:
  """Renders a template as transformers does, up to the model's next turn.

  Templates come with weights from anywhere, so they run in a sandbox.

  Args:
    template: of Jinja; '' is none.
    messages: turns, each with a role and its content.
    named: special tokens that it may write, such as `bos_token`.

  Raises:
    UserError: there is no template, it fails, or jinja2 is missing.
  """
  if not template:
    raise UserError('chat: the tokenizer has no chat template')
  try:
    import jinja2.ext
    import jinja2.sandbox
  except ImportError:
    raise UserError(
      "chat: templates need jinja2; pip install 'specsamp[hf]'"
    ) from None

  class Generation(jinja2.ext.Extension):
    """Marks what a model writes, for training; here it is but a block."""

    tags = {'generation'}

    def parse(self, parser):
      line = next(parser.stream).lineno
      body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
      return jinja2.nodes.Scope(body, lineno=line)

  def raise_exception(message):
    raise jinja2.TemplateError(message)

  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[Generation, 'jinja2.ext.loopcontrols'],
  )
  environment.filters['tojson'] = _to_json
  environment.globals['raise_exception'] = raise_exception
  environment.globals['strftime_now'] = lambda form: (
    datetime.datetime.now().strftime(form)
  )
  try:
    return environment.from_string(template).render(
      messages=messages,
      tools=None,
      documents=None,
      add_generation_prompt=True,
      **named,
    )
  except Exception as error:  # whatever a template does
    reason = ' '.join(str(error).split()) or type(error).__name__
    raise UserError(f'chat template: {reason}') from None


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
