"""Checks that speculative decoding of any origin is lossless.

One adapter function connects the code, be it numpy, PyTorch or a server:

- `check_rule` takes `verify(draft_probs, target_probs, draft_tokens, rng)`, the
  rule that accepts draft tokens;
- `check_decoder` takes `decode(draft_logits, target_logits, requests, rng)`, a
  whole loop with its sampling transforms, caches, batches and stops.

Each runs scenarios: two table models over four tokens. The correct distribution
of their completions is known, and each scenario isolates a few errors. So the
scenarios that fail name the error (`specsamp.conformance.traps`).
"""

import dataclasses
import functools
import operator
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np

from specsamp.conformance import paths, traps
from specsamp.conformance.scenarios import (
  SCENARIOS,
  TOLERANCE,
  VOCAB,
  Finding,
  draft_logits,
  expected_law,
  softmax,
  target_logits,
  target_probs,
)
from specsamp.errors import UserError, check_name
from specsamp.utils import user_modules

LEVEL = 1e-6  # chance that a report accuses a correct sampler
_MAX_DEPTH = 4  # of a tree; no scenario shows errors at later tokens
_OF_RULES = [*SCENARIOS][:10]  # the others test transforms, stops and batches


@dataclasses.dataclass(frozen=True)
class Report:
  """Result of a check. `print` shows a line per scenario and the verdict.

  Attributes:
    name: name of the function.
    findings: outcome of each scenario.
    trap: name of the error, a key of `traps.TRAPS`; None if all is right.
  """

  name: str
  findings: tuple[Finding, ...]
  trap: str | None

  @property
  def is_lossless(self) -> bool:
    return self.trap is None

  def __str__(self) -> str:
    lines = [
      f'{found.scenario:12} {"ok" if found.is_right else "WRONG":6}'
      f'{found.detail}'
      for found in self.findings
    ]
    verdict = f'{self.name}: no error found'
    if not self.is_lossless:
      advice = traps.TRAPS[self.trap]
      verdict = f'{self.name}: NOT LOSSLESS: {self.trap}\n  {advice}'
      first = next(found for found in self.findings if not found.is_right)
      verdict += f'\n  for example, in {first.scenario}: {first.example}'
    return '\n'.join([*lines, verdict])


def check_decoder(
  decode: Callable[..., Sequence[Sequence[int]]],
  *,
  skip: Collection[str] = (),
  num_samples: int = 10_000,
) -> Report:
  """Checks that a decoding loop emits the target's distribution.

  `decode(draft_logits, target_logits, requests, rng)` returns the new tokens of
  each `Request`; there are one or two. `draft_logits` and `target_logits` are
  functions that return float64 [V] after a sequence of tokens. A model with a
  cache is a function of the tokens in its cache.

  `rng` has the methods `random` and `choice` of `numpy.random.Generator`. If
  the loop only draws by `choice` and compares numbers of `random`, all its
  paths are enumerated: the result is exact. Any other loop is sampled; it may
  draw a seed with `rng.integers`. A correct loop is then accused with a
  probability below 1e-6. The report states the total variation that each test
  finds in 19 of 20 cases. Seeds are fixed.

  Args:
    decode: the adapter.
    skip: names of `SCENARIOS` that the loop does not support.
    num_samples: samples per scenario, at least 100, if the loop is sampled.

  Raises:
    UserError: an argument is invalid, or the adapter fails.
  """
  for name in skip:
    check_name('skip', name, SCENARIOS)
  names = [name for name in SCENARIOS if name not in skip]
  found = _findings(decode, _name(decode), names, num_samples)
  return Report(_name(decode), found, traps.diagnose(found))


def check_rule(
  verify: Callable[..., Sequence[int]],
  *,
  parents: Sequence[int] | None = None,
  draws: str = 'iid',
  num_samples: int = 10_000,
) -> Report:
  """Checks that a verification rule emits the target's distribution.

  `verify(draft_probs, target_probs, draft_tokens, rng)` returns the tokens of
  one step: the accepted draft tokens and one more. For a chain of G tokens
  `draft_tokens` is int64 [G]. `draft_probs` is float64 [G, V]: row i is the
  distribution that token i was drawn from. `target_probs` is float64 [G + 1,
  V]: row i is the target's distribution after i draft tokens. `check_decoder`
  explains `rng`, enumeration and samples.

  With `parents` the draft is a tree, and the rule is called as
  `verify(draft_probs, target_probs, draft_tokens, parents, rng)`. Node 0 is the
  root, and node i + 1 is token i, which continues node `parents[i]`. Row i of
  `draft_probs` is q after that node, and row n of `target_probs` is p after
  node n.

  Args:
    verify: the adapter.
    parents: the tree, with at most three children per node; None for a chain.
    draws: 'iid' if siblings are independent draws from q, 'distinct' if they
      are drawn without replacement, 'top' if they are the most probable tokens.
    num_samples: samples per scenario, at least 100, if the rule is sampled.

  Raises:
    UserError: an argument is invalid, or the adapter fails.
  """
  check_name('draws', draws, ('iid', 'distinct', 'top'))
  depths = [0]
  for parent in (0, 1) if parents is None else parents:
    is_node = parent in range(len(depths))
    if not is_node or list(parents or ()).count(parent) > 3:
      raise UserError(
        f'parents: got {parents}, expected for each token an earlier node, '
        'and each node at most three times'
      )
    depths.append(depths[parent] + 1)
  if max(depths) > _MAX_DEPTH:
    raise UserError(
      f'parents: got a depth of {max(depths)}, expected at most {_MAX_DEPTH}'
    )
  if not max(depths):
    raise UserError('parents: got none, expected at least one token')

  def findings(draws):
    decode = functools.partial(_one_step, verify, parents, draws)
    return _findings(decode, _name(verify), _OF_RULES, num_samples)

  found = findings(draws)
  trap = traps.diagnose(found, is_rule=True, depth=max(depths))
  for other in traps.OTHER_DRAWS[draws] if trap else ():
    if all(each.is_right for each in findings(other)):
      trap = traps.AS_OTHER_DRAWS[draws]
  return Report(_name(verify), found, trap)


def _one_step(verify, parents, draws, draft, target, requests, rng):
  """Decodes one step with a rule, and continues with draws from the target."""
  (request,) = requests
  nodes = range(request.draft_len) if parents is None else parents
  prefixes, tokens, q_rows = [request.prompt], [], []
  for i, parent in enumerate(nodes):
    q_rows.append(softmax(draft(prefixes[parent])))
    left = q_rows[-1].copy()
    if draws != 'iid':
      left[[tokens[j] for j in range(i) if nodes[j] == parent]] = 0
      left /= left.sum()
    token = left.argmax() if draws == 'top' else rng.choice(VOCAB, p=left)
    tokens.append(int(token))
    prefixes.append((*prefixes[parent], tokens[-1]))
  p_rows = [target_probs(prefix, request) for prefix in prefixes]
  tree = () if parents is None else (parents,)
  rows = np.stack(q_rows), np.stack(p_rows), np.array(tokens)
  step = verify(*rows, *tree, rng)
  max_len = max(map(len, prefixes)) - len(request.prompt) + 1
  if not 1 <= len(step) <= max_len:
    raise UserError(f'got {len(step)} tokens, expected 1 to {max_len}')
  step = _integers(step)[: request.max_tokens]
  while len(step) < request.max_tokens:
    p = target_probs((*request.prompt, *step), request)
    step.append(int(rng.choice(VOCAB, p=p)))
  return [step]


def _name(function: Callable) -> str:
  return getattr(function, '__name__', type(function).__name__)


def _findings(decode, name, scenarios, num_samples) -> tuple[Finding, ...]:
  if not (isinstance(num_samples, int) and num_samples >= 100):
    raise UserError(
      f'num_samples: got {num_samples!r}, expected an integer of at least 100'
    )
  if not scenarios:
    raise UserError('skip: got all scenarios')
  level = LEVEL / len(scenarios)
  return tuple(
    _find(decode, name, scenario, num_samples, level) for scenario in scenarios
  )


def _find(decode, name, scenario, num_samples, level) -> Finding:
  """Runs a scenario. Its results are enumerated if possible, else sampled."""
  requests = SCENARIOS[scenario]
  expected = expected_law(requests)
  run = functools.partial(_run, decode, requests)

  def failed(error):
    is_known = isinstance(error, UserError)
    reason = str(error) if is_known else user_modules.describe(error)
    return UserError(f'{name}, scenario {scenario!r}: {reason}')

  try:
    observed, num_paths = paths.enumerate_law(run)
  except (UserError, SystemExit) as error:
    raise failed(error) from error
  except Exception:  # any code that cannot take these random numbers
    rng, num_paths = np.random.default_rng([*scenario.encode()]), 0
    try:
      observed = Counter(run(rng) for _ in range(num_samples))
    except (Exception, SystemExit) as error:
      raise failed(error) from error
    shares = {rows: n / num_samples for rows, n in observed.items()}
    p = paths.p_value(observed, expected)
    limit = paths.detectable(num_samples, len(expected), level)
    is_right = p >= level
    detail = (
      f'{num_samples} samples: total variation '
      f'{paths.distance(shares, expected):.3f}, p-value <= {p:.1g}; finds '
      f'{limit:.3f} in 19 of 20 cases'
    )
  else:
    distance = paths.distance(observed, expected)
    is_right = distance < TOLERANCE
    detail = f'all {num_paths} paths: total variation {distance:.1g}'
  if scenario == 'zero' and is_right:
    impossible, note = _find_impossible(run, expected)
    observed, is_right = impossible or observed, not impossible
    detail += note
  return Finding(scenario, observed, expected, num_paths, is_right, detail)


def _find_impossible(run, expected) -> tuple[dict | None, str]:
  """Runs with extreme uniform numbers; returns an impossible result, a note."""
  for value in (0.0, 1 - 2.0**-24):
    rng = paths.Constant(value)
    try:
      rows = run(rng)
    except Exception as error:
      if rng.num_calls:
        reason = user_modules.describe(error)
        return None, f'; not tested with u = {value:.8g}: {reason}'
    if not rng.num_calls:
      return None, '; not tested with u = 0, as rng.random is not used'
    if rows not in expected:
      return {rows: 1.0}, f'; but if all u = {value:.8g} it emits {rows[0]}'
  return None, ''


def _integers(tokens) -> list[int]:
  try:
    return [operator.index(token) for token in tokens]
  except TypeError:
    raise UserError(f'got tokens {tokens}, expected integers') from None


def _run(decode, requests, rng) -> tuple[tuple[int, ...], ...]:
  rows = decode(draft_logits, target_logits, requests, rng)
  rows = tuple(tuple(_integers(row)) for row in rows)
  if len(rows) != len(requests):
    raise UserError(f'got {len(rows)} rows, expected {len(requests)}')
  if not all(0 <= token < VOCAB for row in rows for token in row):
    raise UserError(f'got tokens {rows}, expected 0 to {VOCAB - 1}')
  return rows
