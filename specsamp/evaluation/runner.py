"""Runs methods side by side on the same prompts."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import tqdm

from specsamp.data.prompts import Prompt
from specsamp.decoding.generate import generate, slots
from specsamp.drafting.draft import TokenTree
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.evaluation import metrics
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams


class Method(NamedTuple):
  """One way to decode.

  Attributes:
    name: `autoregressive` is the baseline of the speedups.
    drafter: None for the baseline.
    verifier: a name of `specsamp.verification.make`.
    temperature: of both laws.
    top_p: of both laws.
    tree_attention: as of `generate`.
  """

  name: str
  drafter: Drafter | None
  verifier: str
  temperature: float
  top_p: float
  tree_attention: bool = True

  @property
  def tree(self) -> TokenTree:
    return self.drafter.tree if self.drafter else TokenTree.chain(0)

  @property
  def fields(self) -> dict[str, Any]:
    """What tells one method from another in a report."""
    return {
      'method': self.name,
      'temperature': self.temperature,
      'top_p': self.top_p,
      'verifier': self.verifier if self.drafter else '',
      'law': self.drafter.law if self.drafter else '',
      'draft_len': self.tree.depth,
      'branching': tree_name(self.tree),
      'nodes': self.tree.size,
      'tree_attention': self.tree_attention,
    }


def check_sizes(config) -> None:
  """Raises `UserError` where a size or the seed of a config is out of range."""
  for name in ('num_prompts', 'max_prompt_tokens', 'max_new_tokens'):
    if getattr(config, name) < 1:
      raise UserError(
        f'{name}: got {getattr(config, name)}, expected at least 1'
      )
  if config.seed < 0:
    raise UserError(f'seed: got {config.seed}, expected at least 0')


def tree_name(tree: TokenTree) -> str:
  """4x2x1 for a branching, γ=4 for a chain, else nodes and depth."""
  if tree.is_chain:
    return f'γ={tree.depth}' if tree.depth else ''
  if tree.factors:
    return 'x'.join(map(str, tree.factors))
  return f'{tree.size} nodes, depth {tree.depth}'


def token_tree(branching: Sequence[int], target: LanguageModel) -> TokenTree:
  """The tree of this branching.

  Raises:
    UserError: a factor below 1, or more nodes than the target has positions.
  """
  nodes, level = 1, 1
  for factor in branching:
    level *= factor
    nodes += level
    if nodes > target.config.max_length:  # before any is made
      raise UserError(
        f'branching {"x".join(map(str, branching))} has more nodes than the '
        f'{target.config.max_length} positions of the target'
      )
  try:
    return TokenTree.branching(branching)
  except ValueError as error:
    raise UserError(str(error)) from None


def compare(
  target: LanguageModel,
  methods: Sequence[Method],
  prompts: Sequence[Prompt],
  *,
  max_new_tokens: int,
  seed: int,
  path: pathlib.Path,
  task: str,
) -> list[dict[str, Any]]:
  """Decodes every prompt by every method, prompt by prompt, at batch size 1.

  The methods take turns on each prompt, so that a machine whose speed drifts
  is as fast for one as for another. No stop token is honoured: every sequence
  has the same length. A first pass over one prompt of every size of program
  compiles what there is to compile and is not counted.

  Args:
    target: the target.
    methods: what to compare, no two of them equal.
    prompts: texts.
    max_new_tokens: in every sequence.
    seed: prompt i draws from `seed + i`, whatever the method.
    path: a JSON line for every sequence goes here as soon as it is done; what
      it holds from a run that was cut off is not decoded again.
    task: name of the prompts.

  Returns:
    The lines.
  """

  def run(method: Method, prompt: Prompt, i: int):
    return generate(
      target,
      prompt.text,
      drafter=method.drafter,
      verifier=method.verifier,
      sampling=SamplingParams(
        temperature=method.temperature, top_p=method.top_p
      ),
      max_new_tokens=max_new_tokens,
      seed=seed + i,
      stop_tokens=(),
      tree_attention=method.tree_attention,
    )

  heads = [
    [
      method.fields | {'task': task, 'prompt': prompt.name, 'seed': seed + i}
      for method in methods
    ]
    for i, prompt in enumerate(prompts)
  ]
  done = _done(path)
  lines = [done[_key(h)] for row in heads for h in row if _key(h) in done]
  todo = [
    (i, prompt, [m for m, h in zip(methods, row, strict=True)
                 if _key(h) not in done])
    for i, (prompt, row) in enumerate(zip(prompts, heads, strict=True))
  ]  # fmt: skip
  # One prompt for every set of programs.
  warm = {}
  for _, prompt, left in todo:
    length = len(target.tokenizer.encode(prompt.text))
    size = slots(target, length, length + max_new_tokens)
    if left:
      warm.setdefault(size, (prompt, left))
  total = sum(len(left) for *_, left in [*todo, *warm.values()])
  partial = path.with_suffix('.partial')
  partial.write_text(''.join(json.dumps(line) + '\n' for line in lines))
  partial.rename(path)
  with (
    path.open('a') as file,
    tqdm.tqdm(
      total=total, unit='seq', desc='compiling', dynamic_ncols=True
    ) as bar,
  ):
    for prompt, left in warm.values():
      for method in left:
        run(method, prompt, 0)
        bar.update()
    bar.set_description('decoding')
    for i, prompt, left in todo:
      for method in left:
        found = run(method, prompt, i)
        line = heads[i][methods.index(method)] | {
          'tokens': len(found.tokens[0]),
          'rounds': int(found.rounds[0]),
          'drafted_at': found.drafted_at[0].tolist(),
          'accepted_at': found.accepted_at[0].tolist(),
          'prefill_seconds': found.prefill_seconds,
          'decode_seconds': found.decode_seconds,
          'text': found.texts[0],
        }
        file.write(json.dumps(line) + '\n')
        file.flush()
        lines.append(line)
        bar.update()
  # In the order of the methods, resumed or not.
  order = {_key(head): i for i, head in enumerate(sum(heads, []))}
  return sorted(lines, key=lambda line: order[_key(line)])


def _key(line: dict[str, Any]) -> tuple:
  return tuple(line[name] for name in (*metrics.KEYS, 'prompt', 'seed'))


def _done(path: pathlib.Path) -> dict[tuple, dict[str, Any]]:
  """The lines of a file, without one that was cut off while written."""
  done = {}
  for text in path.read_text().splitlines() if path.exists() else ():
    try:
      line = json.loads(text)
    except json.JSONDecodeError:
      continue
    done[_key(line)] = line
  return done
