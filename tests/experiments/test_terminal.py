"""The counts of a streamed completion: those of every other surface."""

import dataclasses
import re

import pytest
from testing import tiny

import specsamp
from specsamp.data.prompts import Prompt
from specsamp.drafting import TokenTree, model_drafter
from specsamp.drafting.drafter import NoDrafter
from specsamp.evaluation import metrics, runner
from specsamp.evaluation.methods import Method
from specsamp.evaluation.tasks import Question, Task
from specsamp.experiments import marked_texts, terminal
from specsamp.sampling.transforms import SamplingParams

_PROMPT = 'abc'
_GREEDY = SamplingParams(temperature=0.0)


def _drafter(target):
  return model_drafter(tiny.first_layer(target), 3)


def _rounds(target, budget):
  """Returns (tokens, number of accepted draft tokens) of each round."""
  rounds = specsamp.stream(
    target,
    _PROMPT,
    drafter=_drafter(target),
    sampling=_GREEDY,
    max_new_tokens=budget,
  )
  return [(each.tokens[0], each.num_accepted[0]) for each in rounds]


def _cut_inside_a_draft(how):
  """Returns a target and a budget that end a text in an accepted draft."""
  target = tiny.model(11, 28)
  text, is_drafted = [], []
  for tokens, accepted in _rounds(target, 40):
    text += tokens
    is_drafted += [i < accepted for i in range(len(tokens))]
  if how == 'budget':
    return target, next(
      i for i in range(4, 40) if is_drafted[i - 1] and is_drafted[i]
    )
  stop = next(
    token
    for i, token in enumerate(text)
    if i and is_drafted[i] and token not in text[:i]
  )
  tokenizer = dataclasses.replace(target.tokenizer, eos_id=stop)
  return dataclasses.replace(target, tokenizer=tokenizer), 40


@pytest.mark.parametrize('how', ['budget', 'stop token'])
def test_one_text_has_one_count_everywhere(how, tmp_path, capsys):
  """A text that ends inside an accepted draft has one τ on every surface."""
  model, budget = _cut_inside_a_draft(how)
  drafter = _drafter(model)
  out = specsamp.generate(
    model, _PROMPT, drafter=drafter, sampling=_GREEDY, max_new_tokens=budget
  )
  (tokens,), (rounds,) = out.tokens, out.rounds.tolist()
  accepted = int(out.num_accepted_per_pos.sum())
  cut = rounds + accepted - len(tokens)
  assert cut > 0
  tau = out.block_efficiency
  assert tau == (len(tokens) + cut) / rounds == 1 + accepted / rounds

  stream = _rounds(model, budget)
  assert len(stream) == rounds and sum(n for _, n in stream) == accepted

  engine = specsamp.Engine(model, slots=1, drafter=drafter, max_length=64)
  (completion,) = engine.generate(
    [_PROMPT], sampling=_GREEDY, max_new_tokens=budget
  )
  assert completion.block_efficiency == tau

  method = Method('SpS', drafter, 'token', 0.0, 1.0)
  settings = runner.Settings(max_prompt_tokens=8, max_new_tokens=budget, seed=0)
  prompt = Question('a', _PROMPT)
  lines = runner.compare(
    model,
    [method],
    [Task('letters', [prompt], ends=how != 'budget')],
    settings,
    tmp_path / 'metrics.jsonl',
  )
  (row,) = metrics.summarize(lines)
  assert row.block_efficiency == tau
  ids = model.tokenizer.encode(_PROMPT)
  marked_texts.write(
    model, {row.label: method}, [row], lines, _PROMPT, ids, 'T', tmp_path
  )
  assert f'τ {tau:.2f};' in (tmp_path / marked_texts.PAGE).read_text()

  capsys.readouterr()
  line = terminal.show(
    model,
    drafter,
    Prompt('p', _PROMPT),
    ids,
    verifier='token',
    sampling=_GREEDY,
    max_new_tokens=budget,
    seed=0,
  )
  assert line['block_efficiency'] == tau and line['accepted'] == accepted
  text, counts, _ = capsys.readouterr().out.rsplit('\n--- ', 2)
  assert f'{len(tokens)} tokens in {rounds} passes' in counts
  assert f'τ {tau:.2f}' in counts
  assert f'accepted draft tokens: {accepted}' in counts
  assert f'cut at the end: {cut}' in counts
  # What is counted as accepted is marked, but for what is not shown.
  marked = sum(map(len, re.findall('«(.*?)»', text)[1:]))
  hidden = 'stop token' in counts
  assert hidden == (how == 'stop token')
  kept = sum(len(tokens[:n]) for tokens, n in stream)
  assert marked == kept - hidden


def _show(target, drafter, budget=12, verifier='token', **options):
  return terminal.show(
    target,
    drafter,
    Prompt('prompt', _PROMPT),
    target.tokenizer.encode(_PROMPT),
    verifier=verifier,
    sampling=_GREEDY,
    max_new_tokens=budget,
    seed=0,
    **options,
  )


def test_a_completion_ends_with_its_times(capsys):
  target = tiny.model(26, seed=0)
  line = _show(target, _drafter(target))
  out = capsys.readouterr().out
  assert re.search(r'[\d.]+ ms a token, [\d.]+ tokens a second', out)
  assert line['seconds'] > 0 and line['prefill_seconds'] > 0
  assert 'speedup' not in out
  both = terminal.total([line, line | {'tokens': 3, 'seconds': 2.0}])
  assert f'{line["tokens"] + 3} tokens' in both and 'speedup' not in both


def test_speedup_of_the_users_own_prompt(capsys, monkeypatch):
  target = tiny.model(26, seed=0)
  for ms in ((1.0, 2.0), (2.0, 1.0)):  # of a token, with and without a draft
    times = iter(ms * terminal._REPEATS)
    monkeypatch.setattr(
      terminal, '_ms', lambda _, times=times: (each := next(times), each)
    )
    line = _show(target, _drafter(target), speedup=True)
    out = capsys.readouterr().out
    assert line['speedup'] == ms[1] / ms[0]
    assert f'speedup {line["speedup"]:.2f}x' in out
    assert ('gains, and it was' in out) == (line['speedup'] < 1)
    assert f'speedup {line["speedup"]:.2f}x' in terminal.total([line, line])


def test_speedup_of_a_rule_that_verifies_no_empty_draft(capsys):
  target = tiny.model(26, seed=0)
  drafter = model_drafter(
    tiny.first_layer(target), TokenTree.branching((2, 1)), 'top_plus_one'
  )
  line = _show(target, drafter, verifier='top_plus_one', speedup=True)
  assert line['speedup'] > 0


def test_plain_decoding_speaks_of_no_draft(capsys):
  line = _show(tiny.model(26, seed=0), NoDrafter(), speedup=True)
  out = capsys.readouterr().out
  assert 'draft' not in out and 'speedup' not in line
