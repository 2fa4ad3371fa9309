"""Bars on standard error, which tell how far a run is and how long it takes.

The environment variable TQDM_DISABLE=1 silences all of them. It is read when a
bar begins, so that a script can set it in `os.environ`.
"""

import os
import sys
from collections.abc import Iterable

import tqdm

from specsamp.utils import distributed

_LOG_SECONDS = 30  # between lines, where standard error is no terminal


class _Lines(tqdm.tqdm):
  """A line now and then, for a file in which nothing is written over."""

  def display(self, msg=None, pos=None):
    # At its end, which alone gives a position, tqdm ends the line.
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
  """A bar for what has something to do, shown by the first process.

  The time left is of the average pace, for what is done in turns is not of one
  length; where something else took time, `unpause` takes it out.

  Args:
    what: is done, in a word or two.
    values: to go through; None for a bar that is told of each `update`.
    total: how many; of the values if left out.
    unit: what they are.
    stays: on the terminal when all is done, unless another bar encloses it.
      A bar that does not stay is not shown in a log.
    **options: more of tqdm's.
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
