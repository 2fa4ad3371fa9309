"""Progress bars in a log."""

import io

from specsamp.utils import progress


def test_a_bar_without_steps_is_not_shown(monkeypatch):
  monkeypatch.setattr('sys.stderr', printed := io.StringIO())
  resumed = progress.bar('training', [], initial=9, total=9, unit='tok')
  assert list(resumed) == []
  assert printed.getvalue() == ''


def test_a_log_has_lines(monkeypatch):
  monkeypatch.setattr('sys.stderr', printed := io.StringIO())
  assert list(progress.bar('decoding', 'abc', unit='seq')) == [*'abc']
  list(progress.bar('timing', 'abc', unit='loop', stays=False))
  first, last = printed.getvalue().splitlines()
  assert first.startswith('decoding:   0%') and 'decoding: 100%' in last
  assert '\r' not in printed.getvalue()
