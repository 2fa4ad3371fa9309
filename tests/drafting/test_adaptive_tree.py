"""Adaptive tree sizes: the choice by cost, and the cut of dynamic trees."""

import functools
import math

import jax
import numpy as np
import pytest
from readers import GREEDY, VOCAB, check_greedy
from testing import tiny

import specsamp
from specsamp.decoding import depth_costs
from specsamp.decoding.request import Request
from specsamp.drafting import (
  DynamicTree,
  adaptive_tree_drafter,
  model_drafter,
  ngram_drafter,
)
from specsamp.drafting.adaptive_tree import Past, expected_tokens
from specsamp.drafting.trained import trained_drafter
from specsamp.errors import UserError
from specsamp.models import presets
from specsamp.planning import prices, topology

PROMPTS = [[3, 1, 4, 1, 5], [7], [2, 7, 1]]
SIZES, ALL = (1, 3, 9), (1, 2, 4, 8, 16, 32, 64)


@functools.cache
def _best_first(chance):
  """Returns the path probabilities of the best nodes, float32 [64].

  Every node has children of probabilities c (1 - c)^k.
  """
  # Nodes of depth d whose ranks add up to r, which are equally probable.
  at = [(d, r) for d in range(1, 9) for r in range(48)]
  ways = [math.comb(r + d - 1, r) for d, r in at]
  value = np.asarray([chance**d * (1 - chance) ** r for d, r in at])
  order = np.argsort(-value, kind='stable')
  best = np.repeat(value[order], np.minimum(ways, ALL[-1])[order])
  return np.r_[1, best[: ALL[-1] - 1]].astype(np.float32)


def _trees(chances):
  """Returns trees of 400 rounds of one row, [rounds, 1, 64]."""
  chosen = np.random.default_rng(0).choice(chances, 400)
  return np.stack([_best_first(float(chance)) for chance in chosen])[:, None]


@functools.partial(jax.jit, static_argnums=2)
def _choices(trees, ms_k, has_past):
  """Returns the index of the size of each round, and expected tokens."""

  def step(past, path_probs_bn):
    tokens_k = expected_tokens(path_probs_bn, np.array([True]), ALL)
    chosen = past.choose(tokens_k, ms_k)
    after = past.after_round(tokens_k[chosen], ms_k[chosen])
    return after if has_past else past, (chosen, tokens_k)

  return jax.lax.scan(step, Past.none(), trees)[1]


def _rates(trees, ms, has_past=True):
  """Returns tokens per ms of the rule and of each fixed size, and the sizes."""
  ms_k = np.asarray(ms, np.float32)
  chosen, tokens_rk = map(np.asarray, _choices(trees, ms_k, has_past))
  tokens = tokens_rk[np.arange(len(chosen)), chosen].sum(dtype=np.float64)
  fixed_k = tokens_rk.mean(axis=0, dtype=np.float64) / ms_k
  return (
    tokens / ms_k[chosen].sum(dtype=np.float64),
    fixed_k,
    np.take(ALL, chosen),
  )


def _planned(name, batch):
  """Returns the planned costs of rounds with a draft of 8 levels, [K]."""
  config = prices.PriceConfig(nodes=ALL, acceptance=(('any', True, (0.6,)),))
  draft = presets.llama_68m()
  price = prices.price(
    presets.llama_7b(), draft, topology.parse(name), config, 2048, batch, 2**50
  )
  return [price.pass_ms[size] for size in ALL]


@pytest.mark.parametrize(
  ('ms', 'smallest', 'largest'),
  [
    ([10.0] * len(ALL), 64, 64),  # a node is free
    ([10.0 + n for n in ALL], 2, 8),
    ([10.0 * n for n in ALL], 1, 1),  # a node costs a whole round
    (_planned('h100', 1), 64, 64),
    (_planned('v5e-4', 64), 4, 16),
  ],
)
def test_sizes_follow_the_cost_of_a_node(ms, smallest, largest):
  """No fixed size is faster."""
  rate, fixed_k, sizes = _rates(_trees((0.3, 0.6, 0.95)), ms)
  assert rate >= fixed_k.max() * (1 - 1e-6)
  assert (sizes.min(), sizes.max()) == (smallest, largest)
  # In rounds of one kind there is one best size.
  rate, fixed_k, sizes = _rates(_trees((0.5,)), ms)
  assert rate == pytest.approx(fixed_k.max(), rel=1e-6)
  assert set(sizes) == {ALL[fixed_k.argmax()]}


def test_a_node_competes_with_other_rounds():
  """Against its own round alone it may be slower than a fixed size."""
  trees, ms = _trees((0.1, 0.97)), _planned('v5e-4', 64)
  best, fixed_k, _ = _rates(trees, ms)
  alone, _, _ = _rates(trees, ms, has_past=False)
  assert best > 1.03 * fixed_k.max() > alone


def test_rows_that_are_done_do_not_count():
  path_probs = np.float32([[1, 0.5, 0.25], [1, 0.1, 0.1]])
  mean = lambda *active: expected_tokens(path_probs, np.array(active), (1, 3))
  np.testing.assert_allclose(mean(True, False), [1, 1.75])
  np.testing.assert_allclose(mean(True, True), [1, 1.475])
  np.testing.assert_allclose(mean(False, False), [0, 0])


@functools.cache
def _drafter(kind):
  target = tiny.model(VOCAB, 28, max_length=64, num_layers=1)
  tree = DynamicTree.of(SIZES[-1], 3, 3)
  if kind == 'model':
    draft = tiny.model(VOCAB, 5, max_length=64, num_layers=1)
    return target, model_drafter(draft, tree, 'deterministic')
  trained = tiny.trained(target, kind)
  return target, trained_drafter(trained, target, tree, 'deterministic')


def _request(kind):
  target, drafter = _drafter(kind)
  made = adaptive_tree_drafter(drafter, SIZES, (1.0, 1.5, 2.0))
  return Request.make(
    target, PROMPTS, made, sampling=GREEDY, max_new_tokens=24, stop_tokens=[]
  )


@pytest.mark.parametrize(
  'kind', ['model', 'eagle', pytest.param('dflash', marks=pytest.mark.slow)]
)
def test_greedy_text_is_the_targets(kind):
  """Rounds of all sizes take turns: caches keep the nodes of each."""
  request, state, rounds = _request(kind), None, 0
  forced = [
    request.with_drafter(each)
    for each in request.inputs.drafter.at_each_choice()
  ]
  state, drafted = request.prefill(), []
  while not np.asarray(state.done).all():
    before = np.asarray(state.stats.num_drafted_per_pos)
    state = forced[(2, 0, 1)[rounds % 3]].decode(state, rounds=1)
    new = np.asarray(state.stats.num_drafted_per_pos) - before
    drafted.append(new.max(axis=0).sum())
    rounds += 1
  ends = zip(PROMPTS, np.asarray(state.length), strict=True)
  texts = [
    row[len(prompt) : end].tolist()
    for row, (prompt, end) in zip(state.tokens, ends, strict=True)
  ]
  check_greedy(request.model, PROMPTS, texts)
  # A root alone has no draft, and two more nodes no third level.
  assert drafted[0] == 3 and drafted[1] == 0 and 1 <= drafted[2] <= 2


def test_each_size_is_timed_in_its_own_rounds():
  ms = depth_costs.measure(_request('model'), repeats=1)
  assert ms.shape == (3,) and ms.dtype == np.float32 and (ms > 0).all()


def test_an_engine_keeps_the_past():
  target, drafter = _drafter('model')
  drafter = adaptive_tree_drafter(drafter, SIZES, (1.0, 1.5, 2.0))
  engine = specsamp.Engine(
    target, slots=2, drafter=drafter, max_length=32, rounds=1
  )
  past = []
  for prompt in PROMPTS:
    engine.submit(prompt, max_new_tokens=9, stop_tokens=[])
    list(engine.results())
    past.append(float(engine._batch._state.drafter.past.ms))
  assert 0 < past[0] < past[1] < past[2]


@pytest.mark.parametrize(
  ('args', 'message'),
  [
    (dict(sizes=()), r'sizes: got \(\), .* the last being the 9 nodes'),
    (dict(sizes=(0, 3, 9)), 'expected ascending integers above 0'),
    (dict(sizes=(3, 1, 9)), 'expected ascending integers above 0'),
    (dict(sizes=(1, 3.0, 9)), 'expected ascending integers above 0'),
    (dict(sizes=(1, 3, 8)), 'the last being the 9 nodes'),
    (dict(ms=(1.0, 2.0)), 'expected a cost above 0 for each of the 3 sizes'),
    (dict(ms=(1.0, float('inf'), 2.0)), 'expected a cost above 0'),
    (dict(drafter=ngram_drafter(3)), 'got a NgramDrafter of a static tree'),
  ],
)
def test_invalid_arguments(args, message):
  _, drafter = _drafter('model')
  args = dict(drafter=drafter, sizes=SIZES, ms=(1.0, 1.5, 2.0)) | args
  with pytest.raises(UserError, match=message) as error:
    adaptive_tree_drafter(**args)
  assert '\n' not in str(error.value)


def test_drawn_tokens_may_not_choose_the_size():
  _, drafter = _drafter('model')
  with pytest.raises(UserError, match="got law 'iid', expected deterministic"):
    adaptive_tree_drafter(drafter.replace(law='iid'), SIZES, (1.0, 1.5, 2.0))


def test_a_size_is_chosen_once():
  _, drafter = _drafter('model')
  made = adaptive_tree_drafter(drafter, SIZES, (1.0, 1.5, 2.0))
  with pytest.raises(UserError, match='one that chooses its size'):
    adaptive_tree_drafter(made, SIZES, (1.0, 1.5, 2.0))
