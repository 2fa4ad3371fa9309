"""Completions with marks: their counts are those of every other surface."""

import dataclasses
import html
import re

from testing import tiny

import specsamp
from specsamp.data.prompts import Prompt
from specsamp.drafting import TokenTree, model_drafter
from specsamp.evaluation import metrics, runner
from specsamp.evaluation.methods import BASELINE, Method
from specsamp.evaluation.tasks import Question, Task
from specsamp.experiments import marked_texts
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


def _show(target, drafter, budget=12, verifier='token', **options):
  return marked_texts.show(
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


def _ending_inside_a_draft():
  """Returns a target whose stop token is an accepted draft token."""
  target = tiny.model(11, 28)
  text, is_drafted = [], []
  for tokens, accepted in _rounds(target, 40):
    text += tokens
    is_drafted += [i < accepted for i in range(len(tokens))]
  stop = next(
    token
    for i, token in enumerate(text)
    if i and is_drafted[i] and token not in text[:i]
  )
  tokenizer = dataclasses.replace(target.tokenizer, eos_id=stop)
  return dataclasses.replace(target, tokenizer=tokenizer)


def test_one_text_has_one_count_everywhere(capsys):
  """A text that ends inside an accepted draft has one τ on every surface."""
  model, budget = _ending_inside_a_draft(), 40
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

  rounds_streamed = _rounds(model, budget)
  assert len(rounds_streamed) == rounds
  assert sum(n for _, n in rounds_streamed) == accepted

  engine = specsamp.Engine(model, slots=1, drafter=drafter, max_length=64)
  (completion,) = engine.generate(
    [_PROMPT], sampling=_GREEDY, max_new_tokens=budget
  )
  assert completion.block_efficiency == tau

  line = _show(model, drafter, budget)
  assert line['block_efficiency'] == tau and line['accepted'] == accepted
  text, counts, times = capsys.readouterr().out.rsplit('\n--- ', 2)
  assert f'{len(tokens)} tokens in {rounds} passes' in counts
  assert f'τ {tau:.2f}' in counts and 'stop token' in counts
  assert f'accepted draft tokens: {accepted}' in counts
  assert f'cut at the end: {cut}' in counts
  assert re.search(r'[\d.]+ ms a token, [\d.]+ tokens a second', times)
  # Accepted tokens are marked, except the stop token.
  marked = sum(map(len, re.findall('«(.*?)»', text)[1:]))
  assert marked == sum(len(tokens[:n]) for tokens, n in rounds_streamed) - 1
  both = marked_texts.total([line, line | {'tokens': 3, 'seconds': 2.0}])
  assert f'{line["tokens"] + 3} tokens' in both and 'speedup' not in both


def test_speedup(capsys, monkeypatch):
  """Compares a rule that verifies no empty draft with plain decoding."""
  times = iter([1.0, 2.0] * marked_texts._REPEATS)
  monkeypatch.setattr(marked_texts, '_ms', lambda _: next(times))
  target = tiny.model(26, seed=0)
  drafter = model_drafter(
    tiny.first_layer(target), TokenTree.branching((2, 1)), 'top_plus_one'
  )
  line = _show(target, drafter, verifier='top_plus_one', speedup=True)
  assert line['speedup'] == 2
  assert 'speedup 2.00x' in capsys.readouterr().out
  assert 'speedup 2.00x' in marked_texts.total([line, line])


def test_texts_of_a_page_are_escaped():
  rounds = [
    specsamp.Round(tokens=[['<mark>x', '&y']], num_accepted=[1]),
    specsamp.Round(tokens=[['z']], num_accepted=[0]),
  ]
  page = marked_texts._figure('a <b>', rounds, ''.join)
  assert '<b>a &lt;b&gt;</b>' in page
  assert '3 tokens in 2 rounds, τ 1.50; accepted draft tokens: 1' in page
  assert re.findall('<mark>(.*?)</mark>', page) == ['&lt;mark&gt;x']
  assert re.findall('class="own">(.*?)</span>', page) == ['&amp;y', 'z']


def test_texts_of_a_page_are_those_of_the_run(tmp_path):
  target = tiny.model(26, 0)
  methods = [
    Method(BASELINE, None, 'token', 1.0, 1.0),
    Method('SpS', _drafter(target), 'token', 1.0, 1.0),
  ]
  settings = runner.Settings(max_prompt_tokens=8, max_new_tokens=12, seed=3)
  prompt = Question('a', _PROMPT)
  lines = runner.compare(
    target, methods, [Task('letters', [prompt])], settings,
    tmp_path / 'metrics.jsonl',
  )  # fmt: skip
  marked_texts.write_page(
    target,
    {method.label: method for method in methods},
    metrics.summarize(lines),
    lines,
    settings.conversation(target, prompt, ())[0],
    'Title',
    tmp_path,
  )
  page = (tmp_path / marked_texts.PAGE).read_text()
  (body,) = page.split('</figcaption><pre>')[1:]
  shown = re.sub('<[^>]*>', '', body.split('</pre>')[0])
  assert html.unescape(shown) == lines[1].texts[0]
  accepted = sum(lines[1].num_accepted_per_pos)
  assert f'12 tokens in {lines[1].rounds} rounds' in page
  assert f'accepted draft tokens: {accepted}<' in page
