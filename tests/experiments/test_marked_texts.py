"""Texts side by side: those of the run, nothing read as markup."""

import html
import re

import pytest
from testing import tiny

from specsamp.drafting import model_drafter
from specsamp.evaluation import metrics, runner
from specsamp.evaluation.methods import BASELINE, Method
from specsamp.evaluation.tasks import Question, Task
from specsamp.experiments import marked_texts
from specsamp.experiments.marked_texts import Answer


def test_a_page():
  answer = Answer('a <b>', [('<mark>x', '&y'), ('', 'z')], 3, 1)
  page = marked_texts.page_of('<i>', 'f(a < b)', [answer])
  assert '<title>&lt;i&gt;</title>' in page and 'f(a &lt; b)' in page
  assert '3 tokens in 2 rounds, τ 1.50; accepted draft tokens: 1' in page
  body = page.split('<figure>')[1]
  assert re.findall('<mark>(.*?)</mark>', body) == ['&lt;mark&gt;x']
  assert re.findall('class="own">(.*?)</span>', body) == ['&amp;y', 'z']


@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_its_texts_are_those_of_the_run(temperature, tmp_path):
  target = tiny.model(26, 0)
  methods = [
    Method(BASELINE, None, 'token', temperature, 1.0),
    Method(
      'SpS', model_drafter(tiny.first_layer(target), 2), 'token', temperature,
      1.0,
    ),
  ]  # fmt: skip
  settings = runner.Settings(max_prompt_tokens=8, max_new_tokens=12, seed=3)
  prompt = Question('a', 'abc')
  lines = runner.compare(
    target, methods, [Task('letters', [prompt])], settings,
    tmp_path / 'metrics.jsonl',
  )  # fmt: skip
  marked_texts.write(
    target,
    {method.label: method for method in methods},
    metrics.summarize(lines),
    lines,
    prompt.text,
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
