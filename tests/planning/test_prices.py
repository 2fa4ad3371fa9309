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
  acceptance=(
    ('even', True, _CHANCES),
    ('greedy', False, _CHANCES),
    ('hopeless', True, (0.0,)),
  ),
  compile_nodes=(),
)


def _price(name, batch=1, context=2048, room=2**40, config=_CONFIG):
  where = topology.parse(name)
  return prices.price(_TARGET, _DRAFT, where, config, context, batch, room)


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
  once = 1e3 * 4 * 32_000 / 3350e9
  logits = 42 * once
  # One node of each row has no draft to verify.
  assert ms[free] - ms[1] == pytest.approx(free * logits - 28 * once)
  taken = work.of_pass(_TARGET, shards=1, tokens=1, context=2048)
  beyond = latency.predict(taken, topology.parse('h100')).compute + logits
  assert ms[512] - ms[free] == pytest.approx((512 - free) * beyond, rel=0.01)


def test_messages_of_all_nodes_are_paid():
  one, eight = (_price('v5e-4', batch).pass_ms for batch in (1, 8))
  reduce = 9 * 1.5 * 16 * 4096 * 2 / 100e9  # 16 nodes over two links
  logits = 42 * 4 * 16 * 8000 / 819e9  # with a nucleus, the dearest
  cache = 2 * 4 * 2048 * 4096 * 2 / 4 / 819e9  # of a row
  extra = eight[16] - one[16]
  assert extra == pytest.approx(7e3 * (reduce + logits + cache), rel=0.01)


@pytest.mark.parametrize(
  ('name', 'sampled', 'verified'), [('even', 28, 42), ('greedy', 11, 25)]
)
def test_the_best_drafts_are_those_of_the_searches(name, sampled, verified):
  """Each charged for its own sampling; only a pass over a draft verifies."""
  found = _price('h100', batch=8)
  where = topology.parse('h100')

  def ms(model, nodes, passes):
    taken = work.of_pass(model, shards=1, tokens=nodes, context=2048, batch=8)
    logits = 1e3 * passes * 4 * 8 * nodes * 32_000 / 3350e9
    return latency.predict(taken, where).total + logits

  draft_ms = ms(_DRAFT, 1, sampled)
  pass_ms = {
    n: ms(_TARGET, n, verified if n > 1 else sampled) for n in found.pass_ms
  }
  chain, best = found.best[name]
  tree, rate = tree_search.fastest_tree(_CHANCES, pass_ms, draft_ms, 10)
  assert best.tree == tree
  assert best.ms_per_token == pytest.approx(1 / rate)
  assert best.tau == tree_search.expected_tokens(best.tree, _CHANCES)
  assert best.speedup == pytest.approx(pass_ms[1] / best.ms_per_token)
  curve = speculation.curve(
    0.6, draft_ms, lambda gamma: pass_ms[gamma + 1], pass_ms[1]
  )
  assert chain == pytest.approx(speculation.best(curve))
  assert chain.speedup < best.speedup


def test_the_list_is_of_the_dearest_sampling():
  of = lambda *entries: (
    _price(
      'h100', config=dataclasses.replace(_CONFIG, acceptance=entries)
    ).pass_ms
  )
  nucleus, greedy = ('even', True, _CHANCES), ('greedy', False, _CHANCES)
  assert of(greedy, nucleus) == of(nucleus) != of(greedy)
  once = 1e3 * 4 * 32_000 / 3350e9
  for n in (1, 16):
    extra = of(nucleus)[n] - of(greedy)[n]
    assert extra == pytest.approx(n * (42 - 25) * once)


def test_nothing_is_drafted_where_nothing_is_accepted():
  chain, best = _price('h100', batch=8).best['hopeless']
  assert (chain.gamma, best.tree.size) == (1, 1)
  assert chain.speedup < best.speedup == 1


def test_passes_that_do_not_fit_are_no_candidates():
  """Beside weights and caches a chip holds its share of the logits."""
  name, batch = 'v5e-4', 8
  whole = _price(name, batch)
  node = 4 * batch * 8000  # bytes of the logits of one of each row
  size = whole.best['even'][1].tree.size
  assert size > 4
  for room, largest in ((size * node, size), (size * node - 1, size - 1)):
    found = _price(name, batch, room=room)
    assert max(found.pass_ms) <= largest
    assert (size in found.pass_ms) == (largest == size)
    for n, ms in found.pass_ms.items():
      assert ms == whole.pass_ms[n]
    for _, best in found.best.values():
      assert best.tree.size <= largest
  assert found.free_nodes == whole.free_nodes
  # Chains are passes too.
  chain, best = _price(name, batch, room=2 * node).best['even']
  assert (chain.gamma, best.tree.size) == (1, 2)
  chain, best = _price(name, batch, room=node).best['even']
  assert (chain, best.tree.size) == (None, 1)
  none = _price(name, batch, room=node - 1)
  assert none.pass_ms == {} and set(none.best.values()) == {None}


def test_rows_of_what_does_not_fit(tmp_path):
  node = 4 * 32_000
  listed = [_price('h100', room=room) for room in (node - 1, node, 4 * node)]
  text = report.write(tmp_path, 'Prices', [], listed=listed, nodes=(1, 4, 16))
  summary = json.loads((tmp_path / 'summary.json').read_text())
  assert [
    [row[f'N={n} ms'] is not None for n in (1, 4, 16)]
    for row in summary['prices']
  ] == [[False] * 3, [True, False, False], [True, True, False]]
  none, one = summary['drafts'][0], summary['drafts'][3]
  assert none['chain'] == 'not even N=1 fits' and 'tree nodes' not in none
  assert one['chain'] is one['chain speedup'] is None
  assert one['tree nodes'] == one['tree speedup'] == 1
  assert len(summary['trees']) == 2 * 3
  rows = [line.split() for line in text.splitlines()]
  cells = next(row for row in rows if row[:1] == ['h100:1'])
  assert cells[3:] == ['-', '-', '-', str(listed[0].free_nodes)]
  # Nothing is drawn where nothing fits.
  folder = tmp_path / 'none'
  folder.mkdir()
  report.write(folder, 'Prices', [], listed=listed[:1], nodes=(1,))
  assert 'prices.png' not in (folder / 'report.md').read_text()


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
  assert len(summary['drafts']) == 12
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
  # Of 15.75 GiB they leave 2.0, and logits of 84 x 1024 nodes take 2.6.
  (large,), misfits = _job(
    nodes=(1, 512, 1024), batches=(84,), contexts=(1024,)
  ).prices()
  assert misfits == [] and max(large.pass_ms) == 512


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
  chances = prices.EMBEDDED_PAIR[0][2]
  assert tree == tree_search.best_tree(chances, 32, 10)
  assert (context, batch) == (512, 32)


def _accepted(*chances, has_nucleus=True):
  return dict(acceptance=(('x', has_nucleus, chances),))


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    (dict(nodes=(0,)), 'prices.nodes: got (0,), expected whole numbers from 1'),
    (dict(nodes=(2000,)), 'prices.nodes: got (2000,), expected whole numbers'),
    (dict(nodes=4), 'nodes: got 4, expected tuple'),
    (dict(nodes=(1.5,)), 'nodes: got 1.5, expected an integer'),
    (dict(batches=(True,)), 'batches: got True, expected an integer'),
    (dict(batches=()), 'prices.batches: got none, expected one or more'),
    (dict(contexts=('1',)), "contexts: got '1', expected an integer"),
    (dict(contexts=(64,)), 'prices.nodes: got 128, expected at most the short'),
    (dict(contexts=(4096,)), 'context: got 4096, but the models have 2048'),
    (dict(compile_nodes=(-1,)), 'prices.compile_nodes: got (-1,)'),
    (dict(acceptance=(0.5,)), 'acceptance: got 0.5, expected tuple'),
    (_accepted(), "prices.acceptance: got ('x', True, ()), expected (name, ha"),
    (_accepted(2.0), 'acceptance must sum to at most 1'),
    (_accepted('y'), "acceptance: got 'y', expected a number"),
    (_accepted(-0.1), 'acceptance must be at least 0'),
    (_accepted(float('nan')), 'must be at least 0, got nan'),
    (
      _accepted(0.5, has_nucleus=1),
      'acceptance: got 1, expected true or false',
    ),
    (dict(acceptance=(('x', (0.5,)),)), "got ('x', (0.5,)), expected tuple"),
    (dict(more=1), "prices: key: got 'more'"),
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
