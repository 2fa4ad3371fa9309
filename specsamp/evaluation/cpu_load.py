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

  def share(self) -> float | None:
    """Returns the share of all CPU time, 0 to 1; None if it is unknown."""
    before, after = self._before, _read()
    if before is None or after is None:
      return None
    total, busy, own = (b - a for a, b in zip(before, after, strict=True))
    return min(max((busy - own) / total, 0.0), 1.0) if total > 0 else None

  def warning(self) -> str:
    """Returns a sentence if the times are unreliable, else ''."""
    share = self.share()
    if share is None or share < _MAX_SHARE:
      return ''
    return (
      f'Other processes used {share:.0%} of the CPUs: these times and speedups '
      'are unreliable.'
    )


def _read() -> tuple[float, float, float] | None:
  """Returns (total, busy, own) CPU seconds of all cores since boot."""
  try:
    line = _STAT.read_text(encoding='ascii').splitlines()[0]
    # user, nice, system, idle, iowait, irq, softirq, steal
    values = [int(value) for value in line.split()[1:9]]
    tick = os.sysconf('SC_CLK_TCK')
  except (OSError, ValueError, IndexError, AttributeError):
    return None
  total = sum(values) / tick
  idle = sum(values[3:5]) / tick
  return total, total - idle, sum(os.times()[:4])
