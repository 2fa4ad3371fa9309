"""A first call compiles, with a progress bar, and times that separately."""

import collections

import numpy as np
import pytest

import specsamp
from specsamp.decoding import batch, programs
from specsamp.decoding.engine import Engine
from specsamp.decoding.request import Request
from specsamp.drafting import adaptive_drafter, lookahead_drafter, model_drafter
from specsamp.drafting.features import DraftModule

PROMPT = [3, 1, 4]


@pytest.fixture
def cold(monkeypatch):
  """Forgets all compiled programs, like a new process."""
  monkeypatch.setattr(programs, '_kept', collections.OrderedDict())


def _drafter(name, draft):
  match name:
    case 'adaptive':
      chain = model_drafter(draft, 3)
      return adaptive_drafter(chain, (0, 1, 3), (1.0, 1.5, 2.0))
    case 'lookahead':
      return lookahead_drafter(3)


@pytest.mark.parametrize('streams', [False, True])
@pytest.mark.parametrize('name', ['none', 'adaptive', 'lookahead'])
def test_all_is_compiled_before_the_prompt_pass(
  pair, name, streams, cold, compilations, monkeypatch, capsys
):
  target, draft = pair
  args = dict(drafter=_drafter(name, draft), max_new_tokens=9)
  seen, real = [], Request.prefill

  def prefill(self):
    seen.append(len(compilations))
    return real(self)

  monkeypatch.setattr(Request, 'prefill', prefill)
  if streams:
    list(specsamp.stream(target, PROMPT, **args))
  else:
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


def test_the_bar_can_be_silenced(pair, cold, monkeypatch, capsys):
  monkeypatch.setenv('TQDM_DISABLE', '1')
  specsamp.generate(pair[0], PROMPT, max_new_tokens=2)
  assert capsys.readouterr().err == ''


def test_an_engine_shows_what_it_compiles(pair, compilations, capsys):
  """Without a call of `compile` the first prompt of a width waits."""
  make = lambda: Engine(pair[0], slots=3, max_length=57)
  args = dict(max_new_tokens=3, stop_tokens=[])
  make().generate([PROMPT], **args)
  assert compilations
  assert 'compiling' in capsys.readouterr().err
  compilations.clear()
  # The next engine of this kind is warm, except for wider prompts.
  engine = make()
  engine.generate([PROMPT], **args)
  assert not compilations
  assert capsys.readouterr().err == ''
  engine.generate([PROMPT * 13], **args)
  assert len(compilations) == 1
  assert 'compiling' in capsys.readouterr().err


def test_an_engine_compiles_wide_prompts_without_running_them(
  pair, compilations, monkeypatch
):
  """A run of the widest prompt may take minutes."""
  engine = Engine(pair[0], slots=5, max_length=61)
  seen, real = [], batch.SlotBatch._prefill

  def prefill(self, prompts, bar):
    seen.append(prompts.tokens.shape[1])
    return real(self, prompts, bar)

  monkeypatch.setattr(batch.SlotBatch, '_prefill', prefill)
  engine.compile()
  assert seen == [32]
  compilations.clear()
  engine.generate([PROMPT, PROMPT * 13], max_new_tokens=3, stop_tokens=[])
  assert not compilations


@pytest.mark.parametrize('kind', [list, tuple, np.asarray])
def test_a_flat_list_is_one_prompt(pair, kind):
  args = dict(max_new_tokens=5, stop_tokens=[])
  expected = specsamp.generate(pair[0], [PROMPT], **args).tokens
  ids = kind(PROMPT)
  assert specsamp.generate(pair[0], ids, **args).tokens == expected
  rounds = specsamp.stream(pair[0], ids, **args)
  assert sum((r.tokens[0] for r in rounds), []) == expected[0]
  engine = Engine(pair[0], slots=1, max_length=64)
  assert [c.tokens for c in engine.generate(ids, **args)] == expected


def test_results_and_models_are_shown_in_one_short_line(pair, chain):
  target, _ = pair
  args = dict(drafter=chain, max_new_tokens=8, stop_tokens=[])
  out = specsamp.generate(target, [PROMPT, PROMPT], **args)
  first = next(specsamp.stream(target, PROMPT, **args))
  engine = Engine(target, slots=1, drafter=chain, max_length=64, logprobs=1)
  (completion,) = engine.generate(PROMPT, max_new_tokens=8, stop_tokens=[])
  module = DraftModule(target.transformer, target.params, '')
  shown = list(map(repr, [out, first, completion, target, module]))
  for text in shown:
    assert '\n' not in text and len(text) < 120
  assert '2 completions, 16 tokens' in shown[0]
  assert f'τ {out.block_efficiency:.2f}' in shown[0] and 'ms' in shown[0]
  assert f'{len(first.tokens[0])} tokens' in shown[1]
  assert '8 tokens' in shown[2] and 'length' in shown[2]
  assert 'float32' in shown[3] and 'vocabulary of 11' in shown[3]
