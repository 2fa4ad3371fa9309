"""Progress bars on standard error, with the time left.

The environment variable TQDM_DISABLE=1 silences all of them. It is read when a
bar begins, so that a script can set it in `os.environ`.
"""

import os
import sys
from collections.abc import Iterable

import tqdm

from specsamp.utils import distributed

_LOG_SECONDS = 30  # between lines, where standard error is not a terminal


class _Lines(tqdm.tqdm):
  """A bar that prints a line now and then, for a log file."""

  def display(self, msg=None, pos=None):
    # tqdm passes a position only at the end, where it ends the line itself.
    end = '\n' if pos is None else ''
    self.fp.write(f'{msg or self}{end}')
    self.fp.flush()


def bar(
  what: str,
  values: Iterable | None = None,
  *,
  total: int | None = None,
  unit: str,
  stays: bool = True,
  **options,
) -> tqdm.tqdm:
  """Returns a bar over the values, which the first process shows.

  The time left follows from the average pace since the start, because steps
  differ in length. `unpause` excludes time that was spent on something else.

  Args:
    what: the activity, in a word or two.
    values: the iterable that the bar wraps; None for a bar that is moved with
      `update`.
    total: number of steps; the number of values by default.
    unit: name of one step.
    stays: False for a bar inside of another bar, which disappears from a
      terminal at its end and is not shown in a log.
    **options: further options of tqdm.
  """
  total = len(values) if total is None else total
  is_terminal = sys.stderr.isatty()
  is_shown = total > options.get('initial', 0) and (stays or is_terminal)
  is_silenced = os.environ.get('TQDM_DISABLE', '0') not in ('', '0')
  options |= dict(
    desc=what,
    total=total,
    unit=unit,
    leave=None if stays else False,
    smoothing=0,
    disable=is_silenced or not (is_shown and distributed.is_first()),
  )
  if is_terminal:
    return tqdm.tqdm(values, dynamic_ncols=True, **options)
  seconds = dict(mininterval=_LOG_SECONDS, maxinterval=2 * _LOG_SECONDS)
  return _Lines(values, miniters=1, ascii=True, **seconds, **options)
