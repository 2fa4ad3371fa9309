"""Runs methods side by side on the same prompts."""

import dataclasses
import hashlib
import json
import operator
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import tqdm

from specsamp import files, fingerprint, verification
from specsamp.decoding import programs
from specsamp.decoding.generate import Generation, generate
from specsamp.decoding.request import slots
from specsamp.drafting.draft import TokenTree
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError, check_range
from specsamp.evaluation import metrics
from specsamp.evaluation.tasks import Question, Task, last, tokens_of
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import distributed


class Method(NamedTuple):
  """One way to decode.

  Attributes:
    name: `autoregressive` is the baseline of the speedups.
    drafter: None for the baseline.
    verifier: a name of `specsamp.verification.make`.
    temperature: of target and draft.
    top_p: of target and draft.
    tree_attention: see `generate`.
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
  check_range(
    config, 'num_prompts', 'max_prompt_tokens', 'max_new_tokens', least=1,
    kind=int,
  )  # fmt: skip
  # A prompt draws from the seed and its number.
  most = 2**31 - 1 - config.num_prompts
  check_range(config, 'seed', least=0, most=most, kind=int)


def check_scalars(name: str, values: Sequence[Any]) -> None:
  """Raises `UserError` where one of them is no number."""
  for value in values:
    if type(value) not in (int, float):
      raise UserError(f'{name}: got {value!r}, expected numbers')


def longest_prompt(config, target: LanguageModel) -> list[int]:
  """As many tokens as a config's prompts may have, to check it with.

  Raises:
    UserError: more than the target has positions.
  """
  most = target.config.max_length
  if config.max_prompt_tokens > most:
    raise UserError(
      f'max_prompt_tokens: got {config.max_prompt_tokens}, expected at most '
      f'the {most} positions of the target'
    )
  return [0] * config.max_prompt_tokens


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


def token_tree(
  branching: Sequence[int | Sequence[int]], target: LanguageModel
) -> TokenTree:
  """The tree of this branching.

  Raises:
    UserError: what `TokenTree.branching` refuses, or more nodes than the target
      has positions.
  """
  nodes, level = 1, 1
  for factor in branching:
    many = isinstance(factor, Sequence) and not isinstance(factor, str)
    for count in factor if many else (factor,):
      if type(count) is not int:
        raise UserError(f'branching: got {count!r}, expected integers')
    level = sum(factor) if many else level * factor
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
  tasks: Sequence[Task],
  *,
  max_prompt_tokens: int,
  max_new_tokens: int,
  seed: int,
  path: pathlib.Path,
  samples: int = 1,
  chat: bool = False,
  sweep_prompts: int | None = None,
) -> list[dict[str, Any]]:
  """Answers every prompt by every method, prompt by prompt, at batch size 1.

  The methods take turns on each prompt, so that a machine whose speed drifts
  is as fast for one as for another. Every method has run once for every size
  of program before its times count. What one method emits does not depend
  on the random bits of another.

  Args:
    target: the target.
    methods: what to compare, no two of them equal.
    tasks: what to answer. Those whose answers have no end are answered to the
      same length, whatever comes.
    max_prompt_tokens: of longer conversations the last ones.
    max_new_tokens: in every answer, at most.
    seed: of all draws.
    path: a JSON line for every prompt, method and sample goes here as soon as
      it is done; what it holds from a run that was cut off is not decoded
      again.
    samples: of every prompt, at temperatures above 0.
    chat: prompts are turns in the target's chat template.
    sweep_prompts: so many of each task are answered by every method, the others
      by the baselines and by the fastest draft of each sampling. None: all.

  Returns:
    The lines.
  """
  weights = [
    [target.fingerprint, fingerprint.of(method.drafter)] for method in methods
  ]

  def make(task, i, sample, m) -> _Item:
    prompt = task.prompts[i]
    new_tokens = task.new_tokens(max_new_tokens)
    sizes = (max_prompt_tokens, new_tokens, chat)
    head = _head(methods[m], weights[m], task, prompt, sample, seed, sizes)
    of_all = sweep_prompts is None or i < sweep_prompts
    return _Item(m, task, prompt, new_tokens, head, of_all)

  items = [
    make(task, i, sample, m)
    for task in tasks
    for sample in range(samples)
    for i in range(len(task.prompts))
    for m, method in enumerate(methods)
    if not sample or method.temperature
  ]

  def conversation(prompt: Question, answers: Sequence[str]):
    """Its tokens, and whether its beginning was cut off."""
    whole = tokens_of(target.tokenizer, prompt, answers, chat)
    tokens = last(whole, max_prompt_tokens, target.tokenizer)
    return tokens, len(tokens) < len(whole)

  def answer_of(item: _Item, tokens: list[int], turn: int) -> Generation:
    method = methods[item.method]
    return generate(
      target,
      [tokens],
      drafter=method.drafter,
      verifier=method.verifier,
      sampling=SamplingParams(
        temperature=method.temperature, top_p=method.top_p
      ),
      max_new_tokens=item.new_tokens,
      seed=item.head['seed'] + turn,
      stop_tokens=None if item.task.ends else (),
      tree_attention=method.tree_attention,
    )

  def size(item: _Item, tokens: list[int]):
    limit = len(tokens) + item.new_tokens
    return item.method, slots(target, len(tokens), limit), item.task.ends

  by_id = {item.head['id']: item for item in items}
  num_tokens = target.config.num_tokens
  found = files.read_lines(
    path,
    lambda line: _is_own(line, by_id, num_tokens),
    key=lambda line: line['id'],
  )
  distributed.wait('what is done is read')
  done = {line['id']: line for line in found.kept}
  lines = [done[item.head['id']] for item in items if item.head['id'] in done]
  todo = [item for item in items if item.head['id'] not in done]
  of_all = [item for item in todo if item.of_all]
  of_few = [item for item in todo if not item.of_all]

  def in_turn():
    yield from of_all
    if of_few:  # and by now the others are answered, in `lines`
      asked = {item.head['id'] for item in items if item.of_all}
      fastest = _fastest(methods, [li for li in lines if li['id'] in asked])
      yield from (item for item in of_few if item.method in fastest)

  cold = {}
  for item in of_all:
    tokens, _ = conversation(item.prompt, ())
    cold.setdefault(size(item, tokens), (item, tokens))
  found.rewrite(lines)
  with (
    distributed.first_opens(path, 'a') as file,
    tqdm.tqdm(
      # Beside a baseline one draft.
      total=len(cold)
      + len(of_all)
      + 2 * sum(methods[item.method].drafter is None for item in of_few),
      unit='seq',
      desc='compiling',
      dynamic_ncols=True,
      disable=not distributed.is_first(),
    ) as bar,
  ):
    for item, tokens in cold.values():
      answer_of(item, tokens, 0)
      bar.update()
    warm = set(cold)
    bar.set_description('decoding')
    for item in in_turn():
      answers: list[Generation] = []
      cut = []
      for turn in range(1 + len(item.prompt.later)):
        tokens, is_cut = conversation(
          item.prompt, [answer.texts[0] for answer in answers]
        )
        cut.append(is_cut)
        if size(item, tokens) not in warm:  # an answer made it longer
          answer_of(item, tokens, turn)
          warm.add(size(item, tokens))
        made = programs.num_made()
        answer = answer_of(item, tokens, turn)
        if programs.num_made() > made:  # its program had been let go
          answer = answer_of(item, tokens, turn)
        answers.append(answer)
      line = item.head | _totals(answers) | {'cut': cut}
      file.write(json.dumps(line) + '\n')
      file.flush()
      lines.append(line)
      bar.update()
  # In the order of the methods, resumed or not.
  order = {item.head['id']: i for i, item in enumerate(items)}
  return sorted(lines, key=lambda line: order[line['id']])


class _Item(NamedTuple):
  """A prompt to be answered by a method.

  Attributes:
    method: index of the method.
    task: of which it is.
    prompt: to answer, in all its turns.
    new_tokens: in an answer, at most.
    head: what is known of its line.
    of_all: whether every method answers it.
  """

  method: int
  task: Task
  prompt: Question
  new_tokens: int
  head: dict[str, Any]
  of_all: bool


def _fastest(
  methods: Sequence[Method], lines: Sequence[dict[str, Any]]
) -> set[int]:
  """Indices of the baselines and of the fastest draft of each sampling."""

  def ms_per_token(m: int) -> float:
    own = [line for line in lines if methods[m].fields.items() <= line.items()]
    (row,) = metrics.overall(own)
    return row['ms_per_token']

  found, drafts = set(), {}
  for m, method in enumerate(methods):
    if method.drafter:
      sampling = (method.temperature, method.top_p)
      drafts.setdefault(sampling, []).append(m)
    else:
      found.add(m)
  return found | {min(each, key=ms_per_token) for each in drafts.values()}


# What a line holds beside its head: sums over the turns, then each turn's.
_LINE = {
  'id': str,
  'tokens': int,
  'rounds': int,
  'num_drafted_per_pos': [int],
  'num_accepted_per_pos': [int],
  'prefill_seconds': float,
  'decode_seconds': float,
  'output_tokens': [[int]],
  'texts': [str],
  'cut': [bool],
}


def _is_own(line: Any, by_id: dict[str, _Item], num_tokens: int) -> bool:
  """Whether a line is what `compare` would write of one of these items."""
  if not files.has_shape(line, _LINE) or line['id'] not in by_id:
    return False
  item = by_id[line['id']]
  turns = 1 + len(item.prompt.later)
  depth = line['draft_len'] if item.head.items() <= line.items() else -1
  return (
    [len(line[name]) for name in ('output_tokens', 'texts', 'cut')]
    == [turns] * 3
    and [
      len(line[name])
      for name in ('num_drafted_per_pos', 'num_accepted_per_pos')
    ]
    == [depth] * 2
    and all(
      0 < len(output) <= item.new_tokens for output in line['output_tokens']
    )
    and all(
      0 <= token < num_tokens
      for output in line['output_tokens']
      for token in output
    )
    and line['tokens'] == sum(map(len, line['output_tokens']))
    and line['rounds'] > 0
    and min(line['prefill_seconds'], line['decode_seconds']) >= 0
    and all(
      map(
        operator.le, line['num_accepted_per_pos'], line['num_drafted_per_pos']
      )
    )
    and min([0, *line['num_accepted_per_pos']]) == 0
  )


def _totals(found: Sequence[Generation]) -> dict[str, Any]:
  """What the turns of a conversation came to."""
  total = lambda name: sum(getattr(turn, name)[0] for turn in found)
  # What is fastest is decided by one clock.
  seconds = lambda name: distributed.of_first(
    float(sum(getattr(turn, name) for turn in found))
  )
  return {
    'tokens': sum(len(turn.tokens[0]) for turn in found),
    'rounds': int(total('rounds')),
    'num_drafted_per_pos': total('num_drafted_per_pos').tolist(),
    'num_accepted_per_pos': total('num_accepted_per_pos').tolist(),
    'prefill_seconds': seconds('prefill_seconds'),
    'decode_seconds': seconds('decode_seconds'),
    'output_tokens': [turn.tokens[0] for turn in found],
    'texts': [turn.texts[0] for turn in found],
  }


def _head(method, weights, task, prompt, sample, seed, sizes) -> dict[str, Any]:
  """What is known of a line before it is decoded, and an id of all that."""
  head = method.fields | {
    'task': task.name,
    'prompt': prompt.name,
    'sample': sample,
  }
  # Texts of two methods are compared as independent draws.
  named = json.dumps([seed, head]).encode()
  bits = int.from_bytes(hashlib.sha256(named).digest()[:4], 'big')
  head['seed'] = bits >> 2  # and a turn more is below 2**31 too
  turns = [prompt.text, *prompt.later]
  all_of_it = [head, weights, method.tree.parents, turns, sizes, task.ends]
  all_of_it.append(_settings(method.drafter))
  digest = hashlib.sha256(json.dumps(all_of_it).encode()).hexdigest()
  return head | {'id': digest[:16]}


def _settings(drafter: Drafter | None) -> dict[str, Any]:
  """A drafter's settings beside its weights, its shape and its law."""
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
