"""The kit names planted errors, and accuses no correct rule or loop."""

import functools
import re
import subprocess
import sys

import foreign
import numpy as np
import pytest

from specsamp.conformance import __main__ as command
from specsamp.conformance import (
  check_decoder,
  check_rule,
  paths,
  scenarios,
  traps,
)

_TREE = (0, 0, 1)
_matching = foreign.chain(foreign.sample_and_match)
_iid = functools.partial(foreign.recursive_rejection, iid=True)


def seeded(adapter):
  """Returns an adapter that takes only a seed, like one for PyTorch."""

  def seeded_adapter(*args):
    return adapter(*args[:-1], np.random.default_rng(args[-1].integers(2**40)))

  return seeded_adapter


@pytest.mark.parametrize(
  ('rule', 'options'),
  [
    (foreign.token_rule, {}),
    (functools.partial(foreign.token_rule, error='float32'), {}),
    (foreign.block_rule, {}),
    (_matching, {}),
    (_matching, dict(draws='top')),
    (foreign.k_seq, dict(parents=(0, 0))),
    (_iid, dict(parents=_TREE)),
    (foreign.recursive_rejection, dict(parents=_TREE, draws='distinct')),
    (foreign.sample_and_match, dict(parents=_TREE)),
    (foreign.sample_and_match, dict(parents=_TREE, draws='top')),
  ],
)
def test_correct_rules(rule, options):
  report = check_rule(rule, **options)
  assert report.is_lossless, report
  assert all(found.num_paths for found in report.findings)


_RULES = [
  (foreign.block_rule, 'uncapped', 'uncapped block product', {}),
  (_matching, 'argmax', 'argmax at any temperature', {}),
  (_matching, 'redraws', 'no residual', {}),
  (foreign.token_rule, 'accepts all', 'impossible tokens accepted', {}),
  (foreign.token_rule, 'typical', 'typical acceptance', {}),
  (foreign.token_rule, 'no residual', 'no residual', {}),
  (foreign.token_rule, 'bfloat16', 'q of another dtype', {}),
  (foreign.token_rule, 'float16', 'q of another dtype', {}),
  (foreign.token_rule, 'bonus of the last row', 'bonus token', {}),
  (foreign.token_rule, 'bonus is the argmax', 'bonus token', {}),
  (foreign.token_rule, 'u <= a', 'u <= a', {}),
  (foreign.token_rule, 'u <= cdf', 'u <= a', {}),
  (
    foreign.token_rule,
    'shared with residual',
    'acceptance and residual share random bits',
    {},
  ),
  (
    foreign.token_rule,
    None,
    'top-k candidates verified as if sampled',
    dict(draws='top'),
  ),
  (
    foreign.recursive_rejection,
    None,
    'top-k candidates verified as if sampled',
    dict(parents=_TREE, draws='top'),
  ),
  (
    _iid,
    None,
    'candidates without replacement verified as independent',
    dict(parents=_TREE, draws='distinct'),
  ),
  (
    foreign.sample_and_match,
    'argmax',
    'argmax at any temperature',
    dict(parents=_TREE, draws='top'),
  ),
  (foreign.k_seq, 'no residual', 'no residual', dict(parents=(0, 0))),
  (foreign.token_rule, 'inverted residual', 'unknown', {}),
]


@pytest.mark.parametrize(('rule', 'error', 'trap', 'options'), _RULES)
def test_wrong_rules(rule, error, trap, options):
  if error:
    rule = functools.partial(rule, error=error)
  assert check_rule(rule, **options).trap == trap


@pytest.mark.parametrize(
  'decode',
  [
    foreign.decode,
    functools.partial(foreign.decode, rule=foreign.block_rule),
    functools.partial(foreign.decode, rule=_matching),
    foreign.decode_in_step,
  ],
)
def test_correct_loops(decode):
  report = check_decoder(decode)
  assert report.is_lossless, report
  assert sum(found.num_paths > 0 for found in report.findings) > 15


_LOOPS = [
  ('bfloat16', 'q of another dtype'),
  ('float16', 'q of another dtype'),
  ('top-p first', 'top-p before temperature'),
  ('no top-k', 'sampling transforms'),
  ('draft temperature', 'sampling transforms'),
  ('greedy rows', 'greedy rows'),
  ('top-k as sampled', 'top-k candidates verified as if sampled'),
  ('shared bits', 'draft and verification share random bits'),
  ('cache', 'cache rewind'),
  ('cache miss', 'greedy on a cache miss'),
  ('stop is the last token', 'EOS inside an accepted draft'),
  ('no limit', 'limit inside an accepted draft'),
  ('too short', 'completion too short'),
  ('one stream', 'rows share random bits'),
]


@pytest.mark.parametrize(('error', 'trap'), _LOOPS)
def test_wrong_loops(error, trap):
  assert check_decoder(_loop(error), num_samples=500).trap == trap


def _loop(error):
  return functools.partial(foreign.decode, error=error)


_LOOPS_OF_RULES = [
  (foreign.decode_in_step, None, 'minimum', 'batch advanced by its minimum'),
  (None, foreign.token_rule, 'bonus of the last row', 'bonus token'),
  (None, foreign.token_rule, 'bonus is the argmax', 'bonus token'),
  (None, foreign.token_rule, 'u <= a', 'u <= a'),
  (None, foreign.block_rule, 'uncapped', 'uncapped block product'),
  (None, _matching, 'argmax', 'argmax at any temperature'),
]


@pytest.mark.parametrize(('decode', 'rule', 'error', 'trap'), _LOOPS_OF_RULES)
def test_loops_with_wrong_rules(decode, rule, error, trap):
  if rule:
    rule = functools.partial(rule, error=error)
    decode = functools.partial(foreign.decode, rule=rule)
  else:
    decode = functools.partial(decode, error=error)
  report = check_decoder(decode, skip=['random'], num_samples=500)
  assert report.trap == trap


def test_every_trap_is_planted():
  planted = {trap for _, _, trap, _ in _RULES}
  planted |= {trap for _, trap in _LOOPS}
  planted |= {trap for *_, trap in _LOOPS_OF_RULES}
  assert planted == {*traps.TRAPS}


@pytest.mark.parametrize(
  ('error', 'trap'),
  [
    (None, None),
    ('bfloat16', 'q of another dtype'),
    ('cache miss', 'greedy on a cache miss'),
    ('cache', 'cache rewind'),
  ],
)
def test_seeded_loops_are_sampled(error, trap):
  kept = {'rejected', 'accepted', 'point', 'equal', 'dtype', 'two rows'}
  skip = {*scenarios.SCENARIOS} - kept
  report = check_decoder(seeded(_loop(error)), skip=skip, num_samples=1500)
  assert report.trap == trap
  assert not any(found.num_paths for found in report.findings)


def test_a_seeded_rule_is_sampled():
  rule = functools.partial(foreign.block_rule, error='uncapped')
  report = check_rule(seeded(rule), num_samples=1000)
  assert report.trap == 'uncapped block product'
  assert 'rng.random is not used' in str(report)


@pytest.mark.parity
@pytest.mark.parametrize('accepts', ['lt', 'le'])
def test_a_rule_in_torch(accepts):
  """Tensors are sampled; a uniform number of 0 is tested all the same."""
  import torch

  def verify(draft_probs, target_probs, draft_tokens, rng):
    q, p, tokens = map(torch.tensor, (draft_probs, target_probs, draft_tokens))
    torch.manual_seed(rng.integers(2**31))
    places = torch.arange(len(tokens))
    ratios = p[places, tokens] / q[places, tokens]
    uniforms = torch.tensor(rng.random(len(tokens)))
    count = int(getattr(uniforms, accepts)(ratios).cumprod(0).sum())
    rest = p[count]
    if count < len(tokens):
      rest = (rest - q[count]).clamp(min=0)
    return [*tokens[:count], torch.multinomial(rest, 1)]

  report = check_rule(verify, num_samples=150)
  assert report.trap == (None if accepts == 'lt' else 'u <= a')
  assert not any(found.num_paths for found in report.findings)


def test_other_random_numbers_are_noticed():
  """A program that ignores its generator is not enumerated as certain."""
  rng = np.random.default_rng(0)
  with pytest.raises(paths.NotEnumerable):
    paths.enumerate_law(lambda _: rng.integers(10))


def test_enumeration_of_draws():
  def program(rng):
    a, b = rng.random(2)
    first = int(np.argmax(np.array([0.25, 1.0]) > a))
    pair = rng.choice(3, 2, replace=False, p=[0.5, 0.25, 0.25])
    return first, bool(b >= 0.75), bool(b < 0.5), *map(int, pair)

  law, _ = paths.enumerate_law(program)
  assert law[0, False, True, 0, 1] == 0.25 * 0.5 * 0.25
  assert law[1, True, False, 2, 1] == pytest.approx(0.75 * 0.25 / 12)
  assert sum(law.values()) == 1


def test_levels_and_power():
  """The p-value is an upper bound, and a detectable error is found."""
  rng = np.random.default_rng(0)
  law = np.array([0.4, 0.3, 0.2, 0.1])
  limit = paths.detectable(2000, 4, 1e-3)
  # The least visible direction: the two most probable tokens.
  off = law + limit * np.array([-1, 1, 0, 0])

  def p_values(truth):
    for counts in rng.multinomial(2000, truth, 2000):
      yield paths.p_value(dict(enumerate(counts)), dict(enumerate(law)))

  assert np.mean([p < 0.05 for p in p_values(law)]) < 0.05
  assert np.mean([p < 1e-3 for p in p_values(off)]) > 0.95
  assert paths.p_value({9: 1, 0: 99}, {0: 1.0}) == 0


_FILE = """
def right(draft_probs, target_probs, draft_tokens, rng):
  return [rng.choice(4, p=target_probs[0])]


def wrong(draft_probs, target_probs, draft_tokens, rng):
  return [draft_tokens[0]]


def fails(draft_probs, target_probs, draft_tokens, rng):
  return undefined


def empty(draft_probs, target_probs, draft_tokens, rng):
  return []


def large(draft_probs, target_probs, draft_tokens, rng):
  return [9]


def halves(draft_probs, target_probs, draft_tokens, rng):
  return [0.5]


def exits(draft_probs, target_probs, draft_tokens, rng):
  raise SystemExit(0)
"""


@pytest.mark.parametrize(
  ('words', 'code', 'line'),
  [
    ('rule {}:right', 0, 'right: no error found'),
    ('rule {}:wrong', 1, 'NOT LOSSLESS: impossible tokens accepted'),
    ('rule {}:fails', 2, "'rejected': NameError: .*undefined"),
    ('rule {}:empty', 2, 'got 0 tokens, expected 1 to 3'),
    ('rule {}:halves', 2, r"'rejected': got tokens .*, expected integers"),
    ('rule {}:exits', 2, 'SystemExit'),
    ('rule {}:large', 2, r'got tokens .*9.*, expected 0 to 3'),
    ('decoder {}:wrong', 2, "'rejected': got tokens .*, expected integers"),
    ('rule {}:missing', 2, 'missing is not a function'),
    ('rule no.py:f', 2, 'no file no.py'),
    ('rule {}', 2, 'expected FILE.py:FUNCTION'),
    ('rule {}:right --parents=1', 2, 'parents: got .*, expected for each'),
    ('rule {}:right --parents=0,0,0,0', 2, 'parents: got .*, expected for'),
    ('rule {}:right --parents=0,1,2,3,4', 2, 'depth of 5, expected at most 4'),
    ('rule {}:right --parents=x', 2, "parents: got 'x', expected numbers"),
    ('rule {}:right --draws=all', 2, "draws: got 'all', expected one of iid"),
    ('rule {}:right --samples=9', 2, 'num_samples: got 9, expected an int'),
    ('decoder {}:right --skip=none', 2, "skip: got 'none', expected one of"),
    ('rule', 2, 'required: FILE.py:FUNCTION'),
  ],
)
def test_command(words, code, line, tmp_path, capsys):
  path = tmp_path / 'rules.py'
  path.write_text(_FILE)
  assert command.main(words.format(path).split()) == code
  output = capsys.readouterr()
  text = output.err if code == 2 else output.out
  if code == 2:
    assert text.count('\n') == 1 and not output.out
  assert re.search(line, text), text


def test_needs_no_jax():
  program = (
    'import sys; from specsamp import conformance; conformance.check_rule; '
    'import specsamp.conformance.__main__; '
    'assert not {"jax", "scipy"} & {*sys.modules}'
  )
  subprocess.run([sys.executable, '-c', program], check=True)
