"""The price list: free nodes, passes over N of them, the best drafts."""

import dataclasses
import json
import runpy

import pytest

from specsamp.drafting.draft import TokenTree
from specsamp.errors import UserError
from specsamp.models import presets
from specsamp.planning import (
  compile,
  latency,
  plan,
  prices,
  report,
  speculation,
  topology,
  tree_search,
  work,
)
from specsamp.planning.prices import PriceConfig

_TARGET = dataclasses.replace(presets.llama_7b(), num_layers=4)
_DRAFT = presets.llama_68m()
_CHANCES = (0.6, 0.2, 0.1)
_CONFIG = PriceConfig(
  nodes=(1, 4, 16, 64, 512),
  batches=(1, 8),
  contexts=(512, 2048),
  acceptance=(('even', _CHANCES), ('hopeless', (0.0,))),
  compile_nodes=(),
)


def _price(name, batch=1, context=2048):
  where = topology.parse(name)
  return prices.price(_TARGET, _DRAFT, where, _CONFIG, context, batch)


def test_free_nodes_in_closed_form():
  assert prices.free_nodes(latency.Time(3.0, 0.25, 9.0, 9.0)) == 12
  assert prices.free_nodes(latency.Time(3.0, 4.0, 9.0, 9.0)) == 0
  # Two operations for two bytes, of weights and of a cache that has all heads:
  # peak over bandwidth, whatever the model and the context.
  for name, free in (('h100', 295), ('v5p:2x2x1', 166), ('v5e-4', 240)):
    for context in (512, 2048):
      assert _price(name, context=context).free_nodes == free
  # Rows share the weights, and each has a cache of its own.
  weights, caches = (
    getattr(work.of_pass(_TARGET, shards=1, tokens=1, context=2048), field)
    for field in ('weights', 'caches')
  )
  share = (weights + 8 * caches) / (8 * (weights + caches))
  assert _price('h100', batch=8).free_nodes == int(share * 989e12 / 3350e9)


def test_logits_in_closed_form():
  shape = dict(tokens=16, batch=8)
  assert work.logit_bytes(_TARGET, shards=4, **shape) == 4 * 16 * 8 * 8000
  # A vocabulary that is not split.
  assert work.logit_bytes(_TARGET, shards=3, **shape) == 4 * 16 * 8 * 32_000


def test_a_pass_is_flat_but_for_its_logits_until_the_knee():
  found = _price('h100')
  free, ms = found.free_nodes, found.pass_ms
  assert list(ms) == sorted({*_CONFIG.nodes, *range(1, 12), free})
  assert all(
    a < b for a, b in zip(ms.values(), [*ms.values()][1:], strict=False)
  )
  logits = 1e3 * 42 * 4 * 32_000 / 3350e9
  assert ms[free] - ms[1] == pytest.approx((free - 1) * logits)
  taken = work.of_pass(_TARGET, shards=1, tokens=1, context=2048)
  beyond = latency.predict(taken, topology.parse('h100')).compute + logits
  assert ms[512] - ms[free] == pytest.approx((512 - free) * beyond, rel=0.01)


def test_messages_of_all_nodes_are_paid():
  one, eight = (_price('v5e-4', batch).pass_ms for batch in (1, 8))
  reduce = 9 * 1.5 * 16 * 4096 * 2 / 100e9  # 16 nodes over two links
  logits = 42 * 4 * 16 * 8000 / 819e9
  cache = 2 * 4 * 2048 * 4096 * 2 / 4 / 819e9  # of a row
  extra = eight[16] - one[16]
  assert extra == pytest.approx(7e3 * (reduce + logits + cache), rel=0.01)


def test_the_best_drafts_are_those_of_the_searches():
  found = _price('h100', batch=8)
  where = topology.parse('h100')
  draft_ms = (
    latency.predict(
      work.of_pass(_DRAFT, shards=1, tokens=1, context=2048, batch=8), where
    ).total
    + 1e3 * 42 * 4 * 8 * 32_000 / 3350e9
  )
  chain, best = found.best['even']
  tree, rate = tree_search.fastest_tree(_CHANCES, found.pass_ms, draft_ms, 10)
  assert best.tree == tree
  assert best.ms_per_token == pytest.approx(1 / rate)
  assert best.tau == tree_search.expected_tokens(best.tree, _CHANCES)
  assert best.speedup == pytest.approx(found.pass_ms[1] / best.ms_per_token)
  curve = speculation.curve(
    0.6, draft_ms, lambda gamma: found.pass_ms[gamma + 1], found.pass_ms[1]
  )
  assert chain == pytest.approx(speculation.best(curve))
  assert chain.speedup < best.speedup
  # Nothing is drafted where nothing is accepted.
  chain, best = found.best['hopeless']
  assert (chain.gamma, best.tree.size) == (1, 1)
  assert chain.speedup < best.speedup == 1


def test_rows_and_files(tmp_path):
  listed = [
    _price(name, batch) for name in ('h100', 'v5e-4') for batch in (1, 8)
  ]
  text = report.write(tmp_path, 'Prices', [], listed=listed, nodes=(1, 64))
  assert 'Price list' in text and 'free nodes' in text
  summary = json.loads((tmp_path / 'summary.json').read_text())
  row = summary['prices'][1]
  assert (row['topology'], row['batch']) == ('h100:1', 8)
  assert row['N=64 ms'] == listed[1].pass_ms[64] and 'N=16 ms' not in row
  assert len(summary['drafts']) == 8
  best = listed[0].best['even'][1]
  assert summary['drafts'][0]['tree nodes'] == best.tree.size
  assert TokenTree(summary['trees'][0]['parents']) == best.tree
  assert '![prices](prices.png)' in (tmp_path / 'report.md').read_text()
  assert 10_000 < (tmp_path / 'prices.png').stat().st_size < 60_000


def _job(**changes):
  get_config = runpy.run_path('configs/plan_pairs.py')['get_config']
  values = get_config('vicuna-7b+vicuna-68m').to_dict() | {'compile': False}
  values['prices'] = values['prices'] | changes
  return plan.prepare(values, ['v5e-4'])


def test_what_does_not_fit_has_no_price():
  job = _job(batches=(1, 64), contexts=(512, 2048))
  listed, misfits = job.prices()
  assert [(each.batch, each.context) for each in listed] == [
    (1, 512),
    (1, 2048),
    (64, 512),
  ]
  (line,) = misfits
  assert line.startswith('No price of 64 x 2048 slots: v5e:2x2: weights and')
  assert _job(nodes=()).prices() == ([], [])


def test_trees_are_compiled_of_a_choice_of_sizes():
  """None by default; else the best tree at the first and the last batch."""
  where = topology.parse('v5e-4')
  assert list(_job()._scored(where)) == ['scoring pass']
  get_config = runpy.run_path('configs/plan_pairs.py')['get_config']
  config = get_config('vicuna-7b+vicuna-68m,trees').to_dict()['prices']
  scored = _job(**config)._scored(where)
  assert list(scored) == [
    'scoring pass',
    *(f'tree pass, N={n}, B={b}' for n in (8, 32, 128) for b in (1, 32)),
  ]
  tree, context, batch = scored['tree pass, N=32, B=32']
  chances = prices.EMBEDDED_PAIR[0][1]
  assert tree == tree_search.best_tree(chances, 32, 10)
  assert (context, batch) == (512, 32)


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    (dict(nodes=(0,)), 'prices.nodes: got (0,), expected whole numbers from 1'),
    (dict(nodes=(2000,)), 'prices.nodes: got (2000,), expected whole numbers'),
    (dict(nodes=4), 'prices.nodes: got 4, expected whole numbers'),
    (dict(nodes=(1.5,)), 'prices.nodes: got (1.5,)'),
    (dict(batches=(True,)), 'prices.batches: got (True,)'),
    (dict(batches=()), 'prices.batches: got none, expected one or more'),
    (dict(contexts=('1',)), "prices.contexts: got ('1',)"),
    (dict(contexts=(64,)), 'prices.nodes: got 128, expected at most the short'),
    (dict(contexts=(4096,)), 'context: got 4096, but the models have 2048'),
    (dict(compile_nodes=(-1,)), 'prices.compile_nodes: got (-1,)'),
    (dict(acceptance=(0.5,)), 'prices.acceptance: got 0.5, expected (name, (c'),
    (dict(acceptance=(('x', ()),)), "prices.acceptance: got ('x', ()), expect"),
    (dict(acceptance=(('x', (2.0,)),)), 'acceptance must sum to at most 1'),
    (dict(acceptance=(('x', ('y',)),)), "got ('x', ('y',)), expected (name"),
    (dict(acceptance=(('x', (-0.1,)),)), 'acceptance must be at least 0'),
    (dict(acceptance=(('x', (float('nan'),)),)), 'must be at least 0, got nan'),
    (dict(more=1), "unexpected keyword argument 'more'"),
  ],
)
def test_bad_values(changes, words):
  with pytest.raises(UserError) as error:
    _job(**changes)
  line = str(error.value)
  assert words in line and '\n' not in line


@pytest.mark.parametrize(
  'name',
  [
    pytest.param('v5e-4', marks=pytest.mark.tpu_aot),
    pytest.param('h100', marks=pytest.mark.gpu_aot),
  ],
)
@pytest.mark.extended
def test_a_compiled_tree_pass(name):
  """It sends what is predicted, and its logits are what comes out."""
  small = dataclasses.replace(_TARGET, num_layers=2)
  where = topology.parse(name)
  shards = where.num_chips
  tree = tree_search.best_tree(_CHANCES, 32)
  part = compile.compile_tree_pass(
    small, tree, compile.mesh_of(where), context=512, batch=2
  )
  assert part.name == 'tree pass, N=32, B=2'
  shape = dict(shards=shards, tokens=32, batch=2)
  taken = work.of_pass(small, context=512, **shape)
  assert part.collectives == taken.collectives
  assert part.caches == taken.caches
  assert part.weights > taken.weights  # the embedding lies there too
  logits = work.logit_bytes(small, **shape)
  assert logits < part.other < logits + 16 * 2**20  # code of TPUs
