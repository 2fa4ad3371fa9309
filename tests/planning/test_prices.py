"""Price list: free nodes, passes over N nodes, the best drafts."""

import dataclasses

import pytest

from specsamp.errors import UserError
from specsamp.models import presets
from specsamp.planning import (
  latency,
  prices,
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
  acceptance=(
    ('even', True, _CHANCES),
    ('greedy', False, _CHANCES),
  ),
)


def _price(name, batch=1, context=2048, free_bytes=2**40, config=_CONFIG):
  where = topology.parse(name)
  return prices.price(
    _TARGET, _DRAFT, where, config, context, batch, free_bytes
  )


def test_free_nodes_in_closed_form():
  # Two operations per two bytes, of weights and of a cache with all heads, make
  # peak over bandwidth, independent of the model and the context.
  for name, free in (('h100', 295), ('v5p:2x2x1', 166), ('v5e-4', 240)):
    for context in (512, 2048):
      assert _price(name, context=context).free_nodes == free
  # Rows share the weights, and each row has its own cache.
  one = work.of_pass(_TARGET, shards=1, tokens=1, context=2048)
  share = (one.weights + 8 * one.caches) / (8 * (one.weights + one.caches))
  assert _price('h100', batch=8).free_nodes == int(share * 989e12 / 3350e9)


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
  if name == 'even':  # the most expensive sampling
    assert price.pass_ms == pytest.approx(pass_ms)
  best = price.drafts[name]
  tree, rate = tree_search.fastest_tree(_CHANCES, pass_ms, draft_ms, 10)
  assert (best['tree nodes'], best['depth']) == (tree.size, tree.depth)
  assert best['tree ms/token'] == pytest.approx(1 / rate)
  assert best['τ'] == tree_search.expected_tokens(tree, _CHANCES)
  assert best['tree speedup'] == pytest.approx(pass_ms[1] * rate)
  chain = speculation.best(
    speculation.curve(0.6, draft_ms, lambda n: pass_ms[n + 1], pass_ms[1])
  )
  assert best['chain'] == f'γ={chain.gamma}'
  assert best['chain speedup'] == pytest.approx(chain.speedup)
  assert best['chain speedup'] < best['tree speedup']


def test_only_passes_that_fit_are_candidates():
  """A chip holds weights, caches and its share of the logits."""
  name, batch = 'v5e-4', 8
  whole = _price(name, batch)
  node = 4 * batch * 8000  # bytes of the logits of one node of each row
  size = whole.drafts['even']['tree nodes']
  assert size > 4
  for free, largest in ((size * node, size), (size * node - 1, size - 1)):
    price = _price(name, batch, free_bytes=free)
    assert price.pass_ms == {
      n: ms for n, ms in whole.pass_ms.items() if n <= largest
    }
    assert all(best['tree nodes'] <= largest for best in price.drafts.values())
  # Chains are passes too.
  price = _price(name, batch, free_bytes=2 * node)
  best = price.drafts['even']
  assert (best['chain'], best['tree nodes']) == ('γ=1', 2)
  (row,) = prices.price_rows([price], (1, 16))
  assert row['N=1 ms'] > 0 and row['N=16 ms'] is None
  with pytest.raises(UserError, match='v5e:2x2: the logits do not fit'):
    _price(name, batch, free_bytes=2 * node - 1)


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    (dict(nodes=(0,)), 'prices.nodes: got (0,), expected integers from 1'),
    (dict(nodes=(2000,)), 'prices.nodes: got (2000,), expected integers'),
    (dict(contexts=(64,)), '128), expected integers from 1 to 64'),
    (dict(batches=(0,)), 'prices.batches: got (0,), expected integers from 1'),
    (dict(acceptance=(0.5,)), 'acceptance: got 0.5, expected (name'),
    (dict(acceptance=(('x', True, ()),)), "got ('x', True, ()), expected"),
    (dict(acceptance=(('x', True, (2.0,)),)), 'that sum to at most 1'),
  ],
)
def test_bad_values(changes, words):
  with pytest.raises(UserError) as error:
    PriceConfig(**changes)
  assert words in str(error.value)
