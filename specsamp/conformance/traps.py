"""Names of the errors that released code has had, found by how scenarios fail.

Scenarios are ordered so that each has something that is trivial in those before
it. Where the draft never agrees with a target that is certain, most rules emit
the right token, and the state of a loop can be wrong. Where draft and target
are equal, nothing is rejected.
So the first scenario that fails leaves few errors, and its law decides.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from specsamp.conformance import paths
from specsamp.conformance.scenarios import (
  SCENARIOS,
  TOLERANCE,
  Finding,
  draft_logits,
  expected_law,
  softmax,
  target_logits,
)

# What to do about each error.
TRAPS = {
  'limit inside an accepted draft': (
    'a completion is longer than max_tokens: cut the last step'
  ),
  'EOS inside an accepted draft': (
    'a completion continues after EOS: look for it among all accepted tokens'
  ),
  'completion too short': (
    'a completion ends before max_tokens, and not with EOS: emit the last token'
  ),
  'impossible tokens accepted': (
    'a token with p = 0 is emitted: by acceptance with p of another position, '
    'or by the residual'
  ),
  'cache rewind': (
    'the target reads rejected tokens, or not all accepted ones: after a step '
    'its cache must hold the committed tokens'
  ),
  'bonus token': (
    'the token after an accepted draft is wrong: draw it from p after the last '
    'draft token'
  ),
  'argmax at any temperature': (
    'a draft token is accepted for being the argmax of p: that is right only '
    'at temperature 0'
  ),
  'greedy on a cache miss': (
    'some steps accept the argmax of p as if temperature were 0, others do not'
  ),
  'typical acceptance': (
    'the argmax of p is always emitted where the draft proposes it: accept it '
    'with min(1, p / q), and draw the rest from norm(max(p - q, 0))'
  ),
  'no residual': (
    'after a rejection a token is drawn from p: draw it from '
    'norm(max(p - q, 0))'
  ),
  'acceptance and residual share random bits': (
    'the uniform number that rejects a token also draws the next: use another'
  ),
  'top-k candidates verified as if sampled': (
    'the draft is the most probable tokens, so its q is one-hot, not softmax'
  ),
  'candidates without replacement verified as independent': (
    'after a rejection remove the candidate from q, and normalise q'
  ),
  'uncapped block product': (
    'the product of p / q over a prefix exceeds 1: cap it after each token'
  ),
  'draft and verification share random bits': (
    'the uniform number that drew a draft token also verifies it: use another'
  ),
  'q of another dtype': (
    'the draft is drawn from rounded values, but verified with others, or the '
    'other way round: use one q for both'
  ),
  'greedy rows': 'at temperature 0 emit the argmax of p and nothing else',
  'u <= a': (
    'if a uniform number is 0 (one in 2^24 in float32), a token with p = 0 is '
    'emitted: accept if u < a, and draw the first token with cdf > u'
  ),
  'top-p before temperature': 'divide the logits by the temperature first',
  'sampling transforms': (
    'p must be the target logits after temperature, top-k and top-p, in this '
    'order, and q the distribution that the draft is drawn from'
  ),
  'batch advanced by its minimum': (
    'a row depends on the accepted lengths of others, or is exchanged with '
    'another: advance each by its own length'
  ),
  'rows share random bits': 'use different random numbers in each row',
  'unknown': 'no known error behaves so: see the scenarios that fail',
}
# Draws for which the rule may be right, and the name of the error if it is.
OTHER_DRAWS = {'top': ('distinct', 'iid'), 'distinct': ('iid',), 'iid': ()}
AS_OTHER_DRAWS = {
  'top': 'top-k candidates verified as if sampled',
  'distinct': 'candidates without replacement verified as independent',
}


def diagnose(
  findings: Sequence[Finding], is_rule: bool = False, depth: int = 2
) -> str | None:
  """Returns the name of the error, None if there is none.

  Args:
    findings: outcomes of scenarios.
    is_rule: True if a rule decoded the first step, and the target the rest.
    depth: number of draft tokens on a path.
  """
  wrong = {found.scenario: found for found in findings if not found.is_right}
  if not wrong:
    return None
  for name, found in wrong.items():
    for rows in found.observed:
      for row, request in zip(rows, SCENARIOS[name], strict=True):
        if len(row) > request.max_tokens:
          return 'limit inside an accepted draft'
        if request.eos is not None and request.eos in row[:-1]:
          return 'EOS inside an accepted draft'
        ends = request.eos is not None and request.eos in row
        if len(row) < request.max_tokens and not ends:
          return 'completion too short'
  name = next(name for name in SCENARIOS if name in wrong)
  found = wrong[name]
  if name in ('point', 'equal') and 'equal' in wrong:
    equal = wrong['equal']
    if equal.fits(equal.expected, lambda rows: rows[0][:depth]):
      return 'bonus token'
  match name:
    case 'rejected' if _first_error(found) == 0:
      return 'impossible tokens accepted'
    case 'accepted' if _first_error(found) == depth:
      return 'bonus token'
    case 'rejected' | 'accepted' if not is_rule:
      return 'cache rewind'
    case 'point':
      # The draft is the argmax of p, of probability 0.5. After an accepted
      # draft the loop's second step begins at depth + 1.
      steps = [0] if is_rule else [0, depth + 1]
      is_argmax = [_prob_of_argmax(found, i) > 1 - TOLERANCE for i in steps]
      if all(is_argmax) and 'equal' not in wrong:
        return 'typical acceptance'
      if all(is_argmax):
        return 'argmax at any temperature'
      if any(is_argmax):
        return 'greedy on a cache miss'
      if _fits_token(found, is_from_p=True):
        return 'no residual'
      if _fits_token(found, shared=('acceptance', 'residual')):
        return 'acceptance and residual share random bits'
    case 'equal' if len({rows[0][:1] for rows in found.observed}) == 1:
      return 'top-k candidates verified as if sampled'
    case 'alternating':  # ratios are 2 and 1/2 in turn
      return 'uncapped block product'
    case 'dense':
      for uses in (('acceptance',), ('residual',), ('acceptance', 'residual')):
        if _fits_token(found, shared=('draft', *uses)):
          return 'draft and verification share random bits'
    case 'random' | 'dtype' if 'dtype' in wrong:
      return 'q of another dtype'
    case 'greedy' | 'greedy row':
      return 'greedy rows'
    case 'zero' if len(found.observed) == 1:
      return 'u <= a'
    case 'temperature' | 'top-k' | 'top-p':
      requests = SCENARIOS[name]
      if found.fits(expected_law(requests, top_p_first=True)):
        return 'top-p before temperature'
      return 'sampling transforms'
    case 'batch' | 'two rows':
      for i in range(2):
        if not found.fits(found.expected, lambda rows, i=i: rows[i]):
          return 'batch advanced by its minimum'
      return 'rows share random bits'
  return 'unknown'


def _first_error(found: Finding) -> int:
  """Returns the place of the first wrong token if one completion is right."""
  ((right, *_),) = found.expected
  return min(
    next((i for i, token in enumerate(right) if row[i : i + 1] != (token,)), 99)
    for row, *_ in found.observed
  )


def _prob_of_argmax(found: Finding, i: int) -> float:
  """Returns how often token i is the target's argmax."""
  prompt = SCENARIOS[found.scenario][0].prompt
  counts = Counter()
  for (row, *_), prob in found.observed.items():
    best = target_logits((*prompt, *row[:i])).argmax()
    counts[row[i : i + 1] == (best,)] += prob
  return counts[True] / counts.total()


def _fits_token(
  found: Finding, shared: Sequence[str] = (), is_from_p: bool = False
) -> bool:
  """Returns True if the first token is that of a draft of one, with an error.

  The errors are uniform numbers that are used twice, and no residual.
  """
  prompt = SCENARIOS[found.scenario][0].prompt
  q = softmax(draft_logits(prompt))
  p = softmax(target_logits(prompt))

  def first_token(rng):
    number = rng.random()
    uniform = lambda use: number if use in shared else rng.random()
    token = _inverse_cdf(q, uniform('draft'))
    if not uniform('acceptance') < min(1, p[token] / q[token]):
      rest = p if is_from_p else np.maximum(p - q, 0)
      token = _inverse_cdf(rest / rest.sum(), uniform('residual'))
    return ((token,),)

  law, _ = paths.enumerate_law(first_token)
  return found.fits(law, lambda rows: rows[0][:1])


def _inverse_cdf(probs: np.ndarray, uniform) -> int:
  return int(np.argmax(np.cumsum(probs) > uniform))
