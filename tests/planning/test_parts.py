"""Compiled programs kept in a file: what is there is not compiled again."""

from specsamp.planning import parts
from specsamp.planning.work import NO_KERNELS, Collective, Part


def _part(name, seconds=1.0):
  reduces = (Collective('all-reduce', 64, 3),)
  return Part(name, 1, 2, 3, 4, reduces, NO_KERNELS, 2, seconds)


def test_a_run_that_was_cut_off_goes_on(tmp_path):
  path, compiled = tmp_path / 'parts.jsonl', []

  def programs(*names):
    def compile_it(slice_name, name):
      compiled.append((slice_name, name))
      return _part(name, len(compiled))

    return {
      (where, name): lambda where=where, name=name: compile_it(where, name)
      for where in ('v4:2x2x1', 'h100:1')
      for name in names
    }

  first = parts.compiled(path, programs('draft step'))
  assert [part.seconds for part in first['h100:1']] == [2]
  path.write_text(path.read_text()[:-20])  # the last line was cut
  again = parts.compiled(path, programs('draft step', 'tree pass, N=8, B=1'))
  assert compiled[2:] == [
    ('v4:2x2x1', 'tree pass, N=8, B=1'),
    ('h100:1', 'draft step'),
    ('h100:1', 'tree pass, N=8, B=1'),
  ]
  assert again['v4:2x2x1'][0] == first['v4:2x2x1'][0]
  assert [part.name for part in again['h100:1']] == [
    'draft step',
    'tree pass, N=8, B=1',
  ]
