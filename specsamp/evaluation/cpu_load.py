"""Share of the CPUs that other processes use during a measurement."""

import os
import pathlib

_STAT = pathlib.Path('/proc/stat')
# A loop on all cores loses about this share of its speed, or more if its
# threads wait for each other.
_MAX_SHARE = 0.15


class Meter:
  """CPU time of other processes since the meter was created, on Linux."""

  def __init__(self):
    self._before = _read()

  def warning(self) -> str:
    """Returns a sentence if the times are unreliable, else ''."""
    total, busy, own = (
      b - a for a, b in zip(self._before, _read(), strict=True)
    )
    share = (busy - own) / total if total else 0.0
    if share < _MAX_SHARE:
      return ''
    return (
      f'Other processes used {share:.0%} of the CPUs: these times and speedups '
      'are unreliable.'
    )


def _read() -> tuple[float, float, float]:
  """Returns (total, busy, own) CPU seconds of all cores since boot."""
  if not _STAT.exists():
    return 0.0, 0.0, 0.0
  # user, nice, system, idle, iowait, irq, softirq, steal
  ticks = [int(value) for value in _STAT.read_text().split()[1:9]]
  second = os.sysconf('SC_CLK_TCK')
  total, idle = sum(ticks) / second, sum(ticks[3:5]) / second
  return total, total - idle, sum(os.times()[:4])
