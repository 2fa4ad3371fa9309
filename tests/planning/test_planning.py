"""Plans: their tables with made-up programs, mistakes, and published pairs."""

import dataclasses
import json
import runpy

import pytest

from specsamp.errors import UserError
from specsamp.evaluation.pairs import PAIRS, folders
from specsamp.experiments import decode
from specsamp.models import presets
from specsamp.planning import compile, plan, topology, work
from specsamp.planning.compile import Compiled
from specsamp.planning.work import Collective

_chinchilla = runpy.run_path('configs/chinchilla.py')['get_config']
_pair = runpy.run_path('configs/plan_pairs.py')['get_config']
_OTHER = _chinchilla().draft.to_dict() | {'vocab_size': 7}
_decode = runpy.run_path('configs/pairs.py')['get_config']


def _prepare(names=('v4:2x2x4',), **changes):
  return plan.prepare(_chinchilla('predict').to_dict() | changes, list(names))


def test_report(tmp_path, monkeypatch, capsys):
  """The figures are those of docs/pods.md."""
  prices = _chinchilla().prices.to_dict() | dict(nodes=(1, 8), batches=(1,))
  job = _prepare(['v4:2x2x4', 'v4-32'], prices=prices, alphas=(0.7,))
  reduces = (Collective('all-reduce', 81920, 161),)

  def compile_program(kind, target, draft, topology, **shape):
    assert shape == dict(gamma=4, context=2048, batch=1)
    weights = 2**35 if kind == compile.LOOP else 2**33
    return Compiled(topology, kind, weights, 2**29, 2**28, 0, reduces, 58.0)

  monkeypatch.setattr(compile, 'compile_program', compile_program)
  config = dataclasses.replace(job.config, compile=True)
  job = dataclasses.replace(job, config=config)
  job.run(tmp_path)
  text = (tmp_path / 'report.md').read_text()
  for words in (
    '# Chinchilla', '## Memory of a chip', '## Collectives', '## Times',
    '## Speedups', '## Paper and plan', '## Published speedups, inverted',
    '## Price list', '![prices](prices.png)', 'τ: tokens per loop',
  ):  # fmt: skip
    assert words in text
  printed = capsys.readouterr().out
  assert 'Memory of a chip' in printed and 'report.md' in printed
  assert (tmp_path / 'prices.png').stat().st_size > 10_000

  summary = json.loads((tmp_path / 'summary.json').read_text())
  # v4-32 is v4:2x2x4, and is planned once.
  assert [row['part'] for row in summary['memory']] == list(compile.KINDS)
  row, _, loop = summary['memory']
  assert (row['total GiB'], row['HBM GiB']) == (8.75, 30.75)
  assert (row['fits'], loop['fits']) == ('yes', 'no')
  row = summary['collectives'][0]
  assert (row['kind'], row['count']) == ('all-reduce', 161)
  (row,) = summary['speedups']
  assert row['best γ'] == max(range(1, 11), key=lambda gamma: row[f'γ={gamma}'])
  paper = [round(row['plan ms'], 2) for row in summary['paper']]
  assert paper == [14.20, 1.83, 4.83]
  assert [
    (round(row['implied τ'], 2), round(row['implied α'], 2), row['best γ'])
    for row in summary['implied']
  ] == [(2.92, 0.73, 4), (3.06, 0.75, 4), (3.75, 0.86, 6)]
  assert [row['N=8 ms'] > row['N=1 ms'] for row in summary['prices']] == [True]
  drafts = {row['acceptance']: row['tree speedup'] for row in summary['drafts']}
  assert drafts['greedy'] > drafts['t=1, top-p 0.95'] > 1
  # Measured times replace predicted ones.
  measured = {'scoring pass': 20.0, 'draft step': 100.0}
  slow = dataclasses.replace(job, measured=measured)
  where = job.slices[0]
  target, score, draft = slow.time_rows(where)
  assert (score['measured ms'], draft['measured ms']) == (20.0, 100.0)
  assert 'measured ms' not in target
  expected = target['predicted ms'] * 1.7 / 120
  assert slow.speedup_row(where, 0.7)['γ=1'] == pytest.approx(
    expected, rel=0.01
  )


def test_what_does_not_fit_has_no_price():
  values = _pair('vicuna-7b+vicuna-68m').to_dict() | {'compile': False}
  values['target'] |= {'num_layers': 2}

  def listed(**changes):
    prices = values['prices'] | dict(contexts=(2048,)) | changes
    return plan.prepare(values | {'prices': prices}, ['v5e-4']).prices()

  (fits,), (misfit,) = listed(batches=(1, 2048))
  assert (fits.batch, fits.context) == (1, 2048)
  assert misfit.startswith('No price of 2048 x 2048 slots: v5e:2x2: weights')
  assert listed(nodes=()) == ([], [])


def test_a_target_that_drafts_for_itself_reads_half_the_bytes():
  values = _pair('vicuna-7b+vicuna-68m,self').to_dict() | {'compile': False}
  job = plan.prepare(values, ['v5e-4'])
  times = job.times(job.slices[0])
  ratio = times['draft step'].memory / times['target step'].memory
  assert 0.5 < ratio < 0.6  # caches are not in 8 bits


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    (None, 'No such file'),
    ('{"draft_ms": 1.8,}', 'not valid JSON'),
    ('[1.8]', 'expected dict'),
    ('{"draft": 1.8}', "key: got 'draft', expected one of draft_ms, score_ms"),
    ('{"draft_ms": 0}', 'draft_ms: got 0.0, expected milliseconds above 0'),
    ('{"draft_ms": NaN}', 'got nan, expected'),
    ('{"target_ms": "14.1"}', "got '14.1'"),
    # With a slow draft no α gives the paper's speedups.
    ('{"draft_ms": 100}', 'tau of 4 draft tokens must be 1 to 5'),
  ],
)
def test_bad_measured_times(tmp_path, text, words):
  path = tmp_path / 'times.json'
  if text is not None:
    path.write_text(text)
  with pytest.raises(UserError) as error:
    _prepare(measured=str(path))
  assert words in str(error.value)


@pytest.mark.parametrize(
  ('names', 'changes', 'words'),
  [
    (['v5e-4'], {}, 'v5e:2x2: weights and caches take 36.56 GiB of each of 4'),
    (['v4:2x4x4'], {}, 'v4:2x4x4, draft: heads: 48 do not divide into 32'),
    (None, dict(alphas=(1.5,)), 'alphas: got 1.5, expected 0 to 1'),
    (None, dict(gamma=0), 'gamma: got 0, expected at least 1'),
    (None, dict(context=4096), 'context: got 4096, but the models have 2048'),
    (None, dict(paper_ms=()), 'paper_speedups: expected paper_ms'),
    (None, dict(draft=_OTHER), 'share a vocabulary; the draft has 7 tokens'),
    (
      None,
      dict(paper_ms=(('gpt', 'v4-32', 1.0),)),
      "model of paper_ms: got 'gpt', expected one of target, draft",
    ),
  ],
)
def test_bad_values(names, changes, words):
  with pytest.raises(UserError) as error:
    _prepare(names or ('v4:2x2x4',), **changes)
  assert words in str(error.value)


@pytest.mark.extended
@pytest.mark.parametrize(
  ('tokens', 'num_experts'),
  [(1, 8.0), (3, 22.53), (5, 35.30), (8, 51.62), (160, 128.0)],
)
def test_experts_that_a_pass_reads(tokens, num_experts):
  """Three tables of bfloat16 [128, 768, 2048] in each of two layers."""
  config = dataclasses.replace(presets.qwen3_30b_a3b(), num_layers=2)
  read = lambda n: work.of_pass(config, shards=1, tokens=n, context=256).weights
  expert = 2 * 3 * 768 * 2048 * 2
  more = (read(tokens) - read(1)) / expert
  assert more == pytest.approx(num_experts - 8, abs=0.01)


@pytest.mark.parametrize('name', PAIRS)
def test_a_pair_fits_its_slice_and_is_decoded_from_its_folders(name):
  values = _pair(name).to_dict() | {'compile': False}
  plan.prepare(values, [PAIRS[name].topology])
  values = _decode(name).to_dict()
  assert (values['target'], values['draft']) == tuple(
    f'MODELS/{folder}' for folder in folders(name)
  )
  with pytest.raises(UserError, match='^model MODELS/.*: no such folder'):
    decode.prepare(values)


@pytest.mark.slow
@pytest.mark.tpu_aot
@pytest.mark.parametrize(
  'name', [name for name in PAIRS if PAIRS[name].topology != 'h100:1']
)
def test_a_pair_is_compiled_for_its_slice(name):
  """The whole loop fits, copies no cache, and sends what Megatron sends.

  Heads of 64 fill half of a TPU's lanes: XLA keeps their caches packed between
  calls and copies them, padded, before the loop.
  """
  pair = PAIRS[name]
  compiled = compile.compile_program(
    compile.LOOP,
    pair.target,
    pair.draft,
    topology.parse(pair.topology),
    gamma=4,
    context=2048,
  )
  assert compiled.total < compiled.topology.chip.hbm_bytes
  full_lanes = pair.target.head_dim == pair.draft.head_dim == 128
  assert compiled.temporaries <= (1 if full_lanes else 2) * compiled.caches
  passes = {each.num_bytes: each for each in compiled.collectives}
  assert passes[5 * pair.target.width * 2].count >= 2 * pair.target.num_layers
