"""Chat templates: render a conversation as the text a model was trained on."""

import datetime
import json
from collections.abc import Iterable, Sequence
from typing import Any

from specsamp.errors import UserError

# Variables that `render` sets, and arguments of transformers'
# `apply_chat_template` that it does not pass to the template.
_RESERVED = {
  'messages',
  'tools',
  'documents',
  'add_generation_prompt',
  'chat_template',
  'continue_final_message',
  'tokenize',
}


def check_variables(names: Iterable[str]) -> None:
  """Raises `UserError` if users must not set one of these variables.

  Special tokens are those named `.._token`, see `tokenizer_files`.
  """
  for name in names:
    if name in _RESERVED or name.endswith('_token'):
      raise UserError(f'chat template: {name!r} is a reserved variable')


def render(
  template: str,
  messages: Sequence[dict[str, Any]],
  named: dict[str, str],
  /,
  **variables: Any,
) -> str:
  """Renders a template as transformers does, up to the model's next turn.

  Templates come with weights from anywhere, so they run in jinja2's sandbox.
  Templates may write the named special tokens, such as `bos_token`, and read
  `variables`, such as `enable_thinking`.

  Raises:
    UserError: the template is empty or fails, or jinja2 is not installed.
  """
  if not template:
    raise UserError('chat: the tokenizer has no chat template')
  try:
    environment = _environment()
  except ImportError:
    raise UserError(
      "chat: templates need jinja2; pip install 'specsamp[hf]'"
    ) from None
  try:
    return environment.from_string(template).render(
      {
        'messages': messages,
        'tools': None,
        'documents': None,
        'add_generation_prompt': True,
        **named,
        **variables,
      }
    )
  except Exception as error:  # a template can raise anything
    reason = ' '.join(str(error).split()) or type(error).__name__
    raise UserError(f'chat template: {reason}') from None


def _environment():
  """Returns a sandbox with the globals and filters of transformers."""
  import jinja2.ext
  import jinja2.sandbox

  class Generation(jinja2.ext.Extension):
    """Jinja block that marks the model's text; only training needs the mark."""

    tags = {'generation'}

    def parse(self, parser):
      line = next(parser.stream).lineno
      body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
      return jinja2.nodes.Scope(body, lineno=line)

  def raise_exception(message):
    raise jinja2.TemplateError(message)

  def to_json(value, ensure_ascii=False, **options):
    # Jinja's filter escapes characters for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)

  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[Generation, 'jinja2.ext.loopcontrols'],
  )
  environment.filters['tojson'] = to_json
  environment.globals |= {
    'raise_exception': raise_exception,
    'strftime_now': lambda form: datetime.datetime.now().strftime(form),
  }
  return environment
