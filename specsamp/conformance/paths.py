"""Exact distributions of programs that draw random numbers, and a test of them.

`enumerate_law` runs a program once per path. The program gets a stand-in for
`numpy.random.Generator`. A comparison of a uniform number with a threshold is a
branch, and so is a call of `choice`; each branch has a known probability.
Programs that use other random numbers are sampled, and `p_value` tests the
counts.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

MAX_PATHS = 10_000
_NEGLIGIBLE = 1e-12  # branches of this probability are not followed
_NUM_REPEATED = 64  # paths that are run twice


class NotEnumerable(Exception):
  """The program's random numbers cannot be enumerated."""


class Paths:
  """Stand-in for `numpy.random.Generator` that follows one path of a program.

  Attributes:
    prob: probability of the path so far.
    others: prefixes of the paths that part from this one after its prefix.
  """

  def __init__(self, prefix: tuple[int, ...] = ()):
    self._prefix, self._taken = prefix, []
    self.prob = 1.0
    self.others: list[tuple[int, ...]] = []

  def random(self, size: int | tuple[int, ...] | None = None) -> Any:
    """Returns uniform numbers that can only be compared with thresholds."""
    if size is None:
      return _Uniform(self)
    uniforms = np.empty(size, object)
    for index in np.ndindex(uniforms.shape):
      uniforms[index] = _Uniform(self)
    return uniforms

  def choice(self, a, size=None, replace=True, p=None) -> Any:
    """Returns one of `a` or of range(a), or an array of `size` of them."""
    if np.ndim(a) == 0 and a > MAX_PATHS:  # a seed
      raise NotEnumerable
    values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
    probs = np.ones(len(values)) if p is None else np.array(p, float)
    if p is not None and not abs(probs.sum() - 1) < 1e-6:
      raise ValueError('probabilities do not sum to 1')
    drawn = []
    for _ in range(1 if size is None else size):
      drawn.append(self.branch(probs / probs.sum()))
      if not replace:
        probs[drawn[-1]] = 0
    return values[drawn[0] if size is None else drawn]

  def branch(self, probs) -> int:
    """Returns the index of the branch that this path takes."""
    step = len(self._taken)
    if step < len(self._prefix):
      index = self._prefix[step]
    else:
      index, *others = (i for i, p in enumerate(probs) if p > _NEGLIGIBLE)
      self.others += [(*self._taken, other) for other in others]
    self._taken.append(index)
    self.prob *= float(probs[index])
    return index


class _Uniform:
  """Uniform number in [0, 1) of which only an interval is known."""

  def __init__(self, paths: Paths):
    self._paths, self._low, self._high = paths, 0.0, 1.0

  def __lt__(self, bound):
    if np.ndim(bound):
      return NotImplemented  # the array compares each of its elements
    if math.isnan(bound):
      raise NotEnumerable
    bound = min(max(float(bound), self._low), self._high)
    share = (bound - self._low) / (self._high - self._low)
    if self._paths.branch((share, 1 - share)) == 0:
      self._high = bound
      return True
    self._low = bound
    return False

  def __ge__(self, bound):
    is_below = self.__lt__(bound)
    return is_below if is_below is NotImplemented else not is_below

  __le__, __gt__ = __lt__, __ge__  # equality has probability 0


class Constant:
  """Stand-in for `numpy.random.Generator` whose uniform numbers are all equal.

  `choice` takes the first value with a positive probability, `integers` 0.

  Attributes:
    num_calls: number of calls of `random`.
  """

  def __init__(self, value: float):
    self._value, self.num_calls = value, 0

  def random(self, size=None):
    self.num_calls += 1
    if self.num_calls > 1000:  # the program waits for another number
      raise NotEnumerable
    return self._value if size is None else np.full(size, self._value)

  def integers(self, *bounds):
    return 0

  def choice(self, a, size=None, replace=True, p=None):
    values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
    is_zero = np.zeros(len(values)) if p is None else np.equal(p, 0)
    values = values[np.argsort(is_zero, kind='stable')]
    return values[0] if size is None else values[:size]


def enumerate_law(run: Callable[[Any], Any]) -> tuple[dict[Any, float], int]:
  """Returns the probability of each result of `run`, and the number of paths.

  Args:
    run: a program. It takes a `numpy.random.Generator` and draws from it alone;
      its result is hashable.

  Raises:
    NotEnumerable: `run` uses other random numbers, or has too many paths.
  """
  law, prefixes, num_paths = Counter(), [()], 0
  while prefixes and num_paths < MAX_PATHS:
    paths, prefix = Paths(prefixes[-1]), prefixes.pop()
    result = run(paths)
    if num_paths < _NUM_REPEATED and run(Paths(prefix)) != result:
      raise NotEnumerable
    law[result] += paths.prob
    prefixes += paths.others
    num_paths += 1
  if prefixes or abs(sum(law.values()) - 1) > 1e-9:
    raise NotEnumerable
  return dict(law), num_paths


def distance(law: Mapping, other: Mapping) -> float:
  """Returns the total variation between two distributions."""
  keys = {*law, *other}
  return sum(abs(law.get(k, 0.0) - other.get(k, 0.0)) for k in keys) / 2


def p_value(counts: Mapping[Any, int], law: Mapping[Any, float]) -> float:
  """Returns an upper bound on the p-value of a likelihood-ratio test.

  The statistic 2 x is asymptotically chi-square. The bound holds for any number
  of samples and any distribution, so no cells are merged.

  Source: Agrawal, arXiv 1904.02291: the moment generating function of x is at
  most that of a gamma variable with shape k = cells - 1.
  """
  total, k = sum(counts.values()), len(law) - 1
  if any(not law.get(key) for key in counts):
    return 0.0
  x = sum(n * math.log(n / total / law[key]) for key, n in counts.items())
  return 1.0 if x <= k or not k else math.exp(k - x + k * math.log(x / k))


def detectable(num_samples: int, num_cells: int, level: float) -> float:
  """Returns the total variation that `p_value` finds in 19 of 20 tests.

  An error of total variation d has a noncentrality of at least 4 n d^2; its
  chi-square distribution is taken as normal.
  """
  k, z = num_cells - 1, 1.645
  if not k:  # any other result is an error
    return 3 / num_samples
  x = bound = k - math.log(level)
  for _ in range(100):
    x = bound + k * math.log(x / k)
  middle = 2 * x - k + 2 * z**2
  noncentrality = middle + math.sqrt(
    max(middle**2 - (2 * x - k) ** 2 + 2 * z**2 * k, 0)
  )
  return min(math.sqrt(noncentrality / (4 * num_samples)), 1.0)
