import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specsamp.sampling import transforms
from specsamp.sampling.transforms import SamplingParams, probabilities

V = 17
jitted = jax.jit(probabilities)


def masses_above(p):
  """Returns the mass that is more probable than each token."""
  return np.array([p[p > of_token].sum() for of_token in p])


def reference_row(logits, temperature, top_k, top_p, min_p):
  """Returns a row in float64, and its smallest distance from a border."""
  logits = np.asarray(logits, np.float64)
  if temperature == 0:
    return np.eye(len(logits))[np.argmax(logits)], 1.0
  margin = 1.0
  w = np.exp((logits - logits.max()) / temperature)
  p = w / w.sum()
  if top_k:
    kth = np.sort(p)[::-1][min(top_k, len(p)) - 1]
    p = np.where(p >= kth, p, 0)
    p = p / p.sum()
  if top_p < 1:
    above = masses_above(p)
    margin = min(margin, np.abs(above - top_p).min())
    p = np.where(above < top_p, p, 0)
    p = p / p.sum()
  if min_p > 0:
    margin = min(margin, np.abs(p - min_p * p.max()).min())
    p = np.where(p >= min_p * p.max(), p, 0)
    p = p / p.sum()
  return p, margin


def reference(logits, sampling):
  """Returns the probabilities [B, ..., V], row by row."""
  s = jax.tree.map(np.asarray, sampling.broadcast(logits.shape[0]))
  out, margin = np.empty(logits.shape), 1.0
  for i in np.ndindex(*logits.shape[:-1]):
    values = (s.temperature, s.top_k, s.top_p, s.min_p)
    out[i], near = reference_row(logits[i], *(x[i[0]] for x in values))
    margin = min(margin, near)
  return out, margin


@st.composite
def cases(draw):
  logit = st.one_of(
    st.integers(-4, 4).map(float),  # ties
    # Steps that float32 still resolves after exp; closer ones may be ties.
    st.integers(-30 * 64, 30 * 64).map(lambda i: i / 64),
    st.sampled_from([-np.inf, -np.inf, -1e30, 200.0]),
  )
  rows = st.lists(logit, min_size=V, max_size=V).filter(
    lambda row: max(row) > -np.inf
  )
  logits = np.array([draw(rows) for _ in range(3)], np.float32)
  rows_of = lambda s: np.array([draw(s) for _ in range(3)])
  sampling = SamplingParams(
    temperature=rows_of(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0])),
    top_k=rows_of(st.sampled_from([0, 0, 1, 2, 5, V, V + 3])),
    top_p=rows_of(st.one_of(st.just(1.0), st.floats(0.01, 0.999))),
    min_p=rows_of(st.one_of(st.just(0.0), st.floats(0.0, 0.9))),
  )
  return logits, sampling.broadcast(3)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases())
def test_agrees_with_a_sort(case):
  logits, sampling = case
  expected, margin = reference(logits, sampling)
  assume(margin > 1e-5)
  got = np.asarray(jitted(logits, sampling))
  np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-7)
  kept = expected > 1e-30  # what float32 can tell from 0
  np.testing.assert_array_equal(got[kept] > 0, True)
  np.testing.assert_array_equal(got[expected == 0], 0)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases())
def test_float64_to_twelve_digits(case):
  logits, sampling = case
  expected, margin = reference(logits, sampling)
  assume(margin > 1e-12)
  with jax.enable_x64(True):
    got = jitted(logits.astype(np.float64), sampling)
    assert got.dtype == jnp.float64
    got = np.asarray(got)
  np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_threshold_is_exact_for_any_digit(dtype):
  """Both the CPU's search and the accelerators', to the last bit."""
  rng = np.random.default_rng(0)
  weights = np.exp2(rng.integers(-40, 1, (4, 65)) * 0.37).astype(dtype)
  weights[:, 0], weights[1, 5:40], weights[2, 3] = 1, 0, 1e-42
  counts = np.array([1, 7, 60, 65], dtype)[:, None]
  expected = np.sort(weights, -1)[np.arange(4), 65 - counts[:, 0].astype(int)]
  unsigned = {np.float32: np.uint32, np.float64: np.uint64}[dtype]
  with jax.enable_x64(dtype == np.float64):
    for digit in (1, 4):
      search = functools.partial(transforms._threshold, digit=digit)
      got = jax.jit(search)(
        weights.view(unsigned), np.ones((4, 1), dtype), counts
      )
      np.testing.assert_array_equal(
        np.asarray(got)[:, 0], expected.view(unsigned)
      )


def test_ties_at_the_border_are_all_kept():
  logits = jnp.log(jnp.array([[0.4, 0.2, 0.2, 0.2]]))
  third = np.array([[0.4, 0.2, 0.2, 0.2]])
  for sampling in (SamplingParams(top_k=2), SamplingParams(top_p=0.5)):
    got = probabilities(logits, sampling)
    np.testing.assert_allclose(got, third, rtol=1e-6)
  for top_p in (0.39, 1e-45):
    got = probabilities(logits, SamplingParams(top_p=top_p))
    np.testing.assert_array_equal(got, [[1, 0, 0, 0]])


def test_top_p_of_one_keeps_what_rounding_would_lose():
  logits = jnp.array([[0.0, -30.0, -80.0, -86.0, -jnp.inf]])
  off, below = (
    np.asarray(probabilities(logits, SamplingParams(top_p=p)))[0]
    for p in (1.0, 1 - 2**-20)
  )
  np.testing.assert_array_equal(off > 0, [1, 1, 1, 1, 0])
  np.testing.assert_array_equal(below > 0, [1, 0, 0, 0, 0])


def test_greedy_rows_are_one_hot_and_do_not_affect_others():
  rng = np.random.default_rng(2)
  logits = rng.normal(size=(4, 3, V)).astype(np.float32)
  logits[0, 0, [4, 9]] = 50.0  # a tie: the lowest index
  logits[2] *= 1e30
  sampling = SamplingParams(
    temperature=np.array([0.0, 0.7, 0.0, 1.5]),
    top_k=np.array([3, 0, 0, 4]),
    top_p=np.array([0.1, 0.9, 1.0, 1.0]),
    min_p=np.array([0.5, 0.0, 0.9, 0.0]),
  )
  with jax.debug_nans(True):
    got = np.asarray(jitted(logits, sampling.broadcast(4)))
  for row in (0, 2):
    np.testing.assert_array_equal(got[row], np.eye(V)[logits[row].argmax(-1)])
  assert got[0, 0, 4] == 1
  for row in (1, 3):
    alone = jax.tree.map(lambda x, row=row: x[row : row + 1], sampling)
    np.testing.assert_array_equal(got[row], jitted(logits[[row]], alone)[0])


@pytest.mark.parametrize('temperature', [0.0, 2e-38, 1e-20, 1.0, 1e30])
def test_broken_logits_give_no_nan(temperature):
  nan, inf = np.nan, np.inf
  big = float(np.finfo(np.float32).max)
  logits = np.array(
    [
      [nan, 1, 0, -1],
      [inf, 0, nan, -inf],
      [inf, inf, 0, big],
      [nan, -inf, nan, -inf],
      [big, -big, -big, big],
      [-big, -inf, -inf, -inf],
    ],
    np.float32,
  )
  for sampling in (
    SamplingParams(temperature),
    SamplingParams(temperature, 2, 0.9, 0.1),
  ):
    got = np.asarray(jitted(logits, sampling.broadcast(6)))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-6)
    assert got[0, 0] == got[1, 2] == got[1, 3] == 0
    assert got[1, 0] == 1 and got[5, 0] == 1
    np.testing.assert_array_equal(got[2] > 0, got[2] == got[2].max())
    if temperature:
      np.testing.assert_allclose(got[3], 0.25)
      assert got[2, 0] == got[2, 1] == got[2, 3] > 0
      assert got[4, 0] == got[4, 3]


def test_broadcast():
  got = SamplingParams(temperature=0, top_k=np.array([1, 2])).broadcast(2)
  assert [x.dtype for x in jax.tree.leaves(got)] == ['f4', 'i4', 'f4', 'f4']
  np.testing.assert_array_equal(got.top_k, [1, 2])
  for wrong in (np.ones(3), np.ones(1), np.ones((2, 1))):
    with pytest.raises(ValueError, match=r'top_p: got shape .*, expected'):
      SamplingParams(top_p=wrong).broadcast(2)


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('temperature', -0.1), ('temperature', np.nan), ('temperature', 'hot'),
    ('temperature', 1e7),  # vocabulary padding would have a probability
    ('temperature', np.array([1.0, -1.0])),
    ('top_k', -1), ('top_k', 2.0), ('top_k', True), ('top_k', 2**31),
    ('top_p', 0.0), ('top_p', 1.01), ('top_p', None), ('min_p', 1.0),
  ],
)  # fmt: skip
def test_check_names_what_got_and_expected(name, value):
  with pytest.raises(ValueError, match=f'^{name}: got .+, expected .+$') as e:
    SamplingParams(**{name: value}).check()
  assert '\n' not in str(e.value)
