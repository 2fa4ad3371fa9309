"""A chat template like that of Qwen3, and transformers' rendering of one."""

from collections.abc import Sequence
from typing import Any

# Thinking is on by default; off, the model's turn begins with empty thoughts.
QWEN3 = """\
{{- bos_token }}
{%- for message in messages %}
  {{- '<' + message.role + '>' + message.content + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<assistant>' }}
  {%- if enable_thinking is defined and enable_thinking is false %}
    {{- '<think>\\n\\n</think>\\n\\n' }}
  {%- endif %}
{%- endif %}
"""
NO_THOUGHTS = '<think>\n\n</think>\n\n'


def of_transformers(
  messages: Sequence[dict[str, str]], bos_token: str, **variables: Any
) -> str:
  """Returns `QWEN3` as transformers renders it, up to the model's turn."""
  from transformers.utils import chat_template_utils

  (text,), _ = chat_template_utils.render_jinja_template(
    conversations=[messages],
    chat_template=QWEN3,
    add_generation_prompt=True,
    bos_token=bos_token,
    **variables,
  )
  return text
