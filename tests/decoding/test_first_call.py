"""A first call compiles, with a progress bar, and times that separately."""

import collections

import numpy as np
import pytest

import specsamp
from specsamp.decoding import programs
from specsamp.decoding.engine import Engine
from specsamp.decoding.request import Request
from specsamp.drafting import adaptive_drafter, model_drafter

PROMPT = [3, 1, 4]


@pytest.fixture
def cold(monkeypatch):
  """Forgets all compiled programs, like a new process."""
  monkeypatch.setattr(programs, '_kept', collections.OrderedDict())


@pytest.mark.parametrize('is_adaptive', [False, True])
def test_all_is_compiled_before_the_prompt_pass(
  pair, is_adaptive, cold, compilations, monkeypatch, capsys
):
  target, draft = pair
  drafter = None
  if is_adaptive:
    drafter = adaptive_drafter(model_drafter(draft, 2), (0, 2), (1.0, 2.0))
  args = dict(drafter=drafter, max_new_tokens=9)
  seen, real = [], Request.prefill

  def prefill(self):
    seen.append(len(compilations))
    return real(self)

  monkeypatch.setattr(Request, 'prefill', prefill)
  out = specsamp.generate(target, PROMPT, **args)
  assert out.compile_seconds > 0
  (compiled,) = seen
  assert compiled >= 2 and len(compilations) == compiled
  assert 'compiling' in capsys.readouterr().err
  # A warm call compiles and prints nothing.
  out = specsamp.generate(target, PROMPT, seed=1, **args)
  list(specsamp.stream(target, PROMPT, seed=1, **args))
  assert out.compile_seconds == 0
  assert seen == [compiled] * 3 and len(compilations) == compiled
  assert capsys.readouterr().err == ''


def test_a_request_is_run_on_the_beginnings_of_its_prompts(
  pair, cold, compilations, monkeypatch
):
  """The first run of long prompts may take minutes."""
  seen, real = [], Request.prefill

  def prefill(self):
    seen.append(self.prompts.length.tolist())
    return real(self)

  monkeypatch.setattr(Request, 'prefill', prefill)
  prompts = [[1], PROMPT * 9]
  request = Request.make(pair[0], prompts, max_new_tokens=3)
  request.compile()
  compiled = len(compilations)
  request.decode(request.prefill())
  assert seen == [[1, 2], [1, 27]]
  assert compiled >= 2 and len(compilations) == compiled


def test_an_engine_compiles_wide_prompts_without_running_them(
  pair, compilations
):
  """A run of the widest prompt may take minutes."""
  engine = Engine(pair[0], slots=5, max_length=61)
  engine.compile()
  programs = engine._batch._programs
  assert programs.widths == {32, 61} and programs.prefill._cache_size() == 1
  compilations.clear()
  engine.generate([PROMPT, PROMPT * 13], max_new_tokens=3, stop_tokens=[])
  assert not compilations


@pytest.mark.parametrize('kind', [list, tuple, np.asarray])
def test_a_flat_list_is_one_prompt(pair, kind):
  args = dict(max_new_tokens=5, stop_tokens=[])
  expected = specsamp.generate(pair[0], [PROMPT], **args).tokens
  assert specsamp.generate(pair[0], kind(PROMPT), **args).tokens == expected
