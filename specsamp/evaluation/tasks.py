"""Sets of prompts by the names that a config has for them."""

import pathlib

from specsamp.data import code_edits, prompts
from specsamp.data.prompts import Prompt
from specsamp.data.tokenizers import Tokenizer


def load(
  name: str, tokenizer: Tokenizer, count: int, max_tokens: int
) -> tuple[str, list[Prompt]]:
  """What a set is called in reports, and its prompts.

  Args:
    name: '' for held-out functions, code_edits, or a JSON list of texts.
    tokenizer: counts the tokens.
    count: prompts wanted.
    max_tokens: in each of them.

  Raises:
    UserError: there is no such set, or not as many prompts.
  """
  if not name:
    found = prompts.held_out(tokenizer, count, max_tokens)
    return 'held-out Python functions', found
  if name == 'code_edits':
    return 'code edits', code_edits.code_edits(tokenizer, count, max_tokens)
  found = prompts.read_json(name, tokenizer, count, max_tokens)
  return pathlib.Path(name).stem, found
