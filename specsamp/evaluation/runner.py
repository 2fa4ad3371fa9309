"""Runs methods side by side on the same prompts."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import tqdm

from specsamp import fingerprint, verification
from specsamp.data.prompts import Prompt
from specsamp.decoding.generate import generate, slots
from specsamp.drafting.draft import TokenTree
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import distributed


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
      'lossless': not self.drafter or verification.make(self.verifier).lossless,
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


def check_methods(methods: Sequence[Method]) -> None:
  """Raises `UserError` where a report could not tell two methods apart."""
  seen = []
  for method in methods:
    if method.fields in seen:
      raise UserError(
        f'methods: {method.name} {tree_name(method.tree)} is there twice'
      )
    seen.append(method.fields)
    if (method.name == 'autoregressive') != (method.drafter is None):
      raise UserError('methods: autoregressive is the name of the baseline')


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
    UserError: a factor that is no integer of at least 1, or more nodes than
      the target has positions.
  """
  for factor in branching:
    if type(factor) is not int:
      raise UserError(f'branching: got {factor!r}, expected integers')
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

  weights = [
    [target.fingerprint, fingerprint.of(method.drafter)] for method in methods
  ]
  heads = [
    [
      _head(method, own, task, prompt, seed + i, max_new_tokens)
      for method, own in zip(methods, weights, strict=True)
    ]
    for i, prompt in enumerate(prompts)
  ]
  done = _done(path)
  distributed.wait('what is done is read')
  lines = [
    done[head['id']] for row in heads for head in row if head['id'] in done
  ]
  todo = [
    (i, m)
    for i in range(len(prompts))
    for m in range(len(methods))
    if heads[i][m]['id'] not in done
  ]
  # Every method once for every set of programs, before its first time counts.
  warm = {}
  for i, m in todo:
    length = len(target.tokenizer.encode(prompts[i].text))
    size = slots(target, length, length + max_new_tokens)
    warm.setdefault((size, m), prompts[i])
  if distributed.is_first():
    partial = path.with_suffix('.partial')
    partial.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    partial.rename(path)
  with (
    distributed.first_opens(path, 'a') as file,
    tqdm.tqdm(
      total=len(todo) + len(warm),
      unit='seq',
      desc='compiling',
      dynamic_ncols=True,
      disable=not distributed.is_first(),
    ) as bar,
  ):
    for (_, m), prompt in warm.items():
      run(methods[m], prompt, 0)
      bar.update()
    bar.set_description('decoding')
    for i, m in todo:
      found = run(methods[m], prompts[i], i)
      line = heads[i][m] | {
        'tokens': len(found.tokens[0]),
        'rounds': int(found.rounds[0]),
        'drafted_at': found.drafted_at[0].tolist(),
        'accepted_at': found.accepted_at[0].tolist(),
        # What is fastest is decided by one clock.
        'prefill_seconds': distributed.of_first(found.prefill_seconds),
        'decode_seconds': distributed.of_first(found.decode_seconds),
        'text': found.texts[0],
      }
      file.write(json.dumps(line) + '\n')
      file.flush()
      lines.append(line)
      bar.update()
  # In the order of the methods, resumed or not.
  order = {head['id']: i for i, head in enumerate(sum(heads, []))}
  return sorted(lines, key=lambda line: order[line['id']])


def _head(
  method, weights, task, prompt, seed, max_new_tokens
) -> dict[str, Any]:
  """What is known of a line before it is decoded, and an id of all that."""
  head = method.fields | {'task': task, 'prompt': prompt.name, 'seed': seed}
  all_of_it = [head, weights, method.tree.parents, prompt.text, max_new_tokens]
  all_of_it.append(_settings(method.drafter))
  digest = hashlib.sha256(json.dumps(all_of_it).encode()).hexdigest()
  return head | {'id': digest[:16]}


def _settings(drafter: Drafter | None) -> dict[str, Any]:
  """What a drafter was told beside its weights, its shape and its law."""
  if not dataclasses.is_dataclass(drafter):
    return {}
  found = {}
  for field in dataclasses.fields(drafter):
    value = getattr(drafter, field.name)
    if isinstance(value, int | str):
      found[field.name] = value
    elif hasattr(value, 'tree'):  # a drafter of which it is made
      found[field.name] = _settings(value)
  return found


def _done(path: pathlib.Path) -> dict[str, dict[str, Any]]:
  """The lines of a file by id, without one that was cut off while written."""
  done = {}
  for text in path.read_text().splitlines() if path.exists() else ():
    try:
      line = json.loads(text)
      done[line['id']] = line
    except (json.JSONDecodeError, KeyError):
      continue
  return done
