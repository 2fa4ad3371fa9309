"""Price list: free nodes, passes over N nodes, the best drafts."""

import dataclasses
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
from specsamp.planning.compile import Program
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
  # Two operations per two bytes, of weights and of a cache with all heads, make
  # peak over bandwidth, independent of the model and the context.
  for name, free in (('h100', 295), ('v5p:2x2x1', 166), ('v5e-4', 240)):
    for context in (512, 2048):
      assert _price(name, context=context).free_nodes == free
  # Rows share the weights, and each row has its own cache.
  weights, caches = (
    getattr(work.of_pass(_TARGET, shards=1, tokens=1, context=2048), field)
    for field in ('weights', 'caches')
  )
  share = (weights + 8 * caches) / (8 * (weights + caches))
  assert _price('h100', batch=8).free_nodes == int(share * 989e12 / 3350e9)


def test_logits_in_closed_form():
  shape = dict(tokens=16, batch=8)
  assert work.logit_bytes(_TARGET, shards=4, **shape) == 4 * 16 * 8 * 8000
  # A vocabulary that does not divide is not split.
  assert work.logit_bytes(_TARGET, shards=3, **shape) == 4 * 16 * 8 * 32_000


def test_a_pass_is_flat_but_for_its_logits_until_the_knee():
  price = _price('h100')
  free, ms = price.free_nodes, price.pass_ms
  assert list(ms) == sorted({*_CONFIG.nodes, *range(1, 12), free})
  assert all(
    a < b for a, b in zip(ms.values(), [*ms.values()][1:], strict=False)
  )
  once = 1e3 * 4 * 32_000 / 3350e9
  logits = 42 * once
  # A pass over one node verifies no draft.
  assert ms[free] - ms[1] == pytest.approx(free * logits - 28 * once)
  one_node = work.of_pass(_TARGET, shards=1, tokens=1, context=2048)
  beyond = latency.predict(one_node, topology.parse('h100')).compute + logits
  assert ms[512] - ms[free] == pytest.approx((512 - free) * beyond, rel=0.01)


def test_messages_of_all_nodes_are_paid():
  one, eight = (_price('v5e-4', batch).pass_ms for batch in (1, 8))
  reduce = 9 * 1.5 * 16 * 4096 * 2 / 100e9  # 16 nodes over two links
  logits = 42 * 4 * 16 * 8000 / 819e9  # with a nucleus, most expensive
  cache = 2 * 4 * 2048 * 4096 * 2 / 4 / 819e9  # of a row
  extra = eight[16] - one[16]
  assert extra == pytest.approx(7e3 * (reduce + logits + cache), rel=0.01)


@pytest.mark.parametrize(
  ('name', 'sampled', 'verified'), [('even', 28, 42), ('greedy', 11, 25)]
)
def test_the_best_drafts_are_those_of_the_searches(name, sampled, verified):
  """Each is charged for its sampling; only a pass over a draft verifies."""
  price = _price('h100', batch=8)
  where = topology.parse('h100')

  def ms(model, nodes, passes):
    model_pass = work.of_pass(
      model, shards=1, tokens=nodes, context=2048, batch=8
    )
    logits = 1e3 * passes * 4 * 8 * nodes * 32_000 / 3350e9
    return latency.predict(model_pass, where).total + logits

  draft_ms = ms(_DRAFT, 1, sampled)
  pass_ms = {
    n: ms(_TARGET, n, verified if n > 1 else sampled) for n in price.pass_ms
  }
  best = price.best[name]
  tree, rate = tree_search.fastest_tree(_CHANCES, pass_ms, draft_ms, 10)
  assert best.tree == tree
  assert best.ms_per_token == pytest.approx(1 / rate)
  assert best.tau == tree_search.expected_tokens(best.tree, _CHANCES)
  assert best.speedup == pytest.approx(pass_ms[1] / best.ms_per_token)
  curve = speculation.curve(
    0.6, draft_ms, lambda gamma: pass_ms[gamma + 1], pass_ms[1]
  )
  assert best.chain == pytest.approx(speculation.best(curve))
  assert best.chain.speedup < best.speedup


def test_the_list_has_the_most_expensive_sampling():
  pass_ms = lambda *entries: (
    _price(
      'h100', config=dataclasses.replace(_CONFIG, acceptance=entries)
    ).pass_ms
  )
  nucleus, greedy = ('even', True, _CHANCES), ('greedy', False, _CHANCES)
  assert pass_ms(greedy, nucleus) == pass_ms(nucleus) != pass_ms(greedy)
  extra = pass_ms(nucleus)[16] - pass_ms(greedy)[16]
  assert extra == pytest.approx(16 * (42 - 25) * 1e3 * 4 * 32_000 / 3350e9)


def test_nothing_is_drafted_where_nothing_is_accepted():
  best = _price('h100', batch=8).best['hopeless']
  assert (best.chain.gamma, best.tree.size) == (1, 1)
  assert best.chain.speedup < best.speedup == 1


def test_only_passes_that_fit_are_candidates():
  """A chip holds weights, caches and its share of the logits."""
  name, batch = 'v5e-4', 8
  whole = _price(name, batch)
  node = 4 * batch * 8000  # bytes of the logits of one node of each row
  size = whole.best['even'].tree.size
  assert size > 4
  for room, largest in ((size * node, size), (size * node - 1, size - 1)):
    price = _price(name, batch, room=room)
    assert (size in price.pass_ms) == (largest == size)
    assert price.pass_ms == {
      n: ms for n, ms in whole.pass_ms.items() if n <= largest
    }
    assert all(best.tree.size <= largest for best in price.best.values())
  # Chains are passes too.
  best = _price(name, batch, room=2 * node).best['even']
  assert (best.chain.gamma, best.tree.size) == (1, 2)
  best = _price(name, batch, room=node).best['even']
  assert (best.chain, best.tree.size) == (None, 1)
  price = _price(name, batch, room=node - 1)
  assert price.pass_ms == {} and set(price.best.values()) == {None}


def test_rows():
  node = 4 * 32_000
  listed = [_price('h100', room=room) for room in (node - 1, node, 4 * node)]
  assert [
    [row[f'N={n} ms'] is not None for n in (1, 4, 16)]
    for row in prices.price_rows(listed, (1, 4, 16))
  ] == [[False] * 3, [True, False, False], [True, True, False]]
  rows = prices.draft_rows(listed)
  assert rows[0]['chain'] == 'not even N=1 fits'
  assert 'tree nodes' not in rows[0]
  assert rows[3]['chain'] is rows[3]['chain speedup'] is None
  assert rows[3]['tree nodes'] == rows[3]['tree speedup'] == 1
  best = listed[2].best['even']
  assert rows[6]['tree nodes'] == best.tree.size
  trees = prices.tree_rows(listed)
  assert len(trees) == 2 * 3
  assert TokenTree(trees[3]['parents']) == best.tree


def test_plot(tmp_path):
  listed = [
    _price(name, batch) for name in ('h100', 'v5e-4') for batch in (1, 8)
  ]
  report.plot_prices(listed, tmp_path / 'prices.png')
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


def test_trees_of_some_sizes_are_compiled():
  """The best tree at the first and the last batch, by default none."""
  where = topology.parse('v5e-4')
  assert [each.name for each in _job().programs(where)] == list(compile.KINDS)
  get_config = runpy.run_path('configs/plan_pairs.py')['get_config']
  config = get_config('vicuna-7b+vicuna-68m,trees').to_dict()['prices']
  _, _, _, *programs = _job(**config).programs(where)
  assert [program.name for program in programs] == [
    f'tree pass, N={n}, B={b}' for n in (8, 32, 128) for b in (1, 32)
  ]
  chances = prices.EMBEDDED_PAIR[0][2]
  assert programs[3].tree == tree_search.best_tree(chances, 32, 10)
  assert (programs[3].context, programs[3].batch) == (512, 32)


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    (dict(nodes=(0,)), 'prices.nodes: got (0,), expected integers from 1'),
    (dict(nodes=(2000,)), 'prices.nodes: got (2000,), expected integers'),
    (dict(batches=()), 'expected batches, contexts and acceptance'),
    (dict(contexts=(64,)), 'prices.nodes: got 128, expected at most the short'),
    (dict(contexts=(4096,)), 'context: got 4096, but the models have 2048'),
    (dict(acceptance=(0.5,)), 'acceptance: got 0.5, expected tuple'),
    (
      dict(acceptance=(('x', True, ()),)),
      "got ('x', True, ()), expected",
    ),
    (dict(acceptance=(('x', True, (2.0,)),)), 'must sum to at most 1'),
  ],
)
def test_bad_values(changes, words):
  with pytest.raises(UserError) as error:
    _job(**changes)
  line = str(error.value)
  assert words in line


@pytest.mark.parametrize(
  'name',
  [
    pytest.param('v5e-4', marks=pytest.mark.tpu_aot),
    pytest.param('h100', marks=pytest.mark.gpu_aot),
  ],
)
@pytest.mark.extended
def test_a_compiled_tree_pass(name):
  """Its collectives are as predicted, and its output is the logits."""
  small = dataclasses.replace(_TARGET, num_layers=2)
  where = topology.parse(name)
  tree = tree_search.best_tree(_CHANCES, 32)
  program = Program(compile.TREE_PASS, tree, context=512, batch=2)
  compiled = compile.compile_program(program, small, small, where)
  assert program.name == 'tree pass, N=32, B=2'
  shape = dict(shards=where.num_chips, tokens=32, batch=2)
  predicted = work.of_pass(small, context=512, **shape)
  assert compiled.collectives == predicted.collectives
  assert compiled.caches == predicted.caches
  assert compiled.weights > predicted.weights  # with the embedding
  logits = work.logit_bytes(small, **shape)
  assert logits < compiled.other < logits + 16 * 2**20  # code of TPUs
