"""The loop, token by token: greedy texts, ragged rows, caches, trees, cuts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp import SamplingParams
from specsamp.decoding.request import Request
from specsamp.drafting import DynamicTree, TokenTree, model_drafter
from specsamp.drafting.trained import KINDS, trained_drafter
from specsamp.sampling import draw
from specsamp.sampling.draw import Stream

# One batch of five rows and one bucket of 32 tokens for almost all tests, so
# that they run the same few programs.
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1], [8, 2, 8, 1, 8], [5, 5]]
BUDGETS = [20, 7, 12, 1, 15]
SEEDS = [11, 3, 3, 2**31 - 1, 0]
# Top-k leaves fewer tokens than a tree has candidates in two of the rows.
MIXED = SamplingParams(
  temperature=np.array([1.0, 0.7, 1.5, 1.0, 0.0]),
  top_k=np.array([0, 1, 0, 2, 0]),
  top_p=np.array([1.0, 1.0, 0.9, 1.0, 0.5]),
)
RAGGED = dict(max_new_tokens=BUDGETS, seed=SEEDS, sampling=MIXED)
GREEDY = dict(max_new_tokens=20, sampling=SamplingParams(temperature=0.0))
# Leaves at three depths, and nodes of a level with different numbers of
# children.
TREE = TokenTree((-1, 0, 0, 0, 1, 1, 3, 4, 4))
_KINDS = [kind for kind in KINDS if tiny.layers(kind) == 1]

shapes = pytest.mark.parametrize('shape', [3, TREE], ids=['chain', 'tree'])


def _make_drafter(draft, shape):
  if draft is None:
    return None
  law = 'iid' if isinstance(shape, int) else 'without_replacement'
  return model_drafter(draft, shape, law)


def _run(target, draft, shape=3, *, prompts=PROMPTS, stop=(), **args):
  drafter = _make_drafter(draft, shape)
  return specsamp.generate(
    target, prompts, drafter=drafter, stop_tokens=stop, **args
  )


def _begin(target, draft, shape=3, **args):
  """Returns a request without stop tokens, and its first state."""
  drafter = _make_drafter(draft, shape)
  request = Request.make(target, PROMPTS, drafter, stop_tokens=[], **args)
  return request, request.prefill()


@pytest.fixture(scope='module')
def greedy(pair):
  """Texts of the target alone, 20 tokens per row."""
  texts = _run(pair[0], None, **GREEDY).tokens
  # With less variety mistakes would not show.
  assert all(len(set(text)) > 3 for text in texts)
  assert len({tuple(text) for text in texts}) == 5
  return texts


def test_greedy_is_the_argmax_of_the_whole_text(pair, greedy):
  """Without cache or loop: one pass over each text predicts its tokens."""
  target, _ = pair
  tokens = np.zeros((5, 32), np.int32)
  for row, prompt, text in zip(tokens, PROMPTS, greedy, strict=True):
    row[: len(prompt) + 20] = prompt + text
  out = jax.jit(target.transformer.apply)({'params': target.params}, tokens)
  best = np.asarray(out.logits).argmax(-1)
  for row, prompt, text in zip(best, PROMPTS, greedy, strict=True):
    assert row[len(prompt) - 1 :][:20].tolist() == text


@pytest.mark.parametrize(
  ('shape', 'verifier'),
  [(3, 'token'), (3, 'block'), (TREE, None)],
)
def test_greedy_equals_autoregressive(pair, greedy, shape, verifier):
  out = _run(*pair, shape, verifier=verifier, **GREEDY)
  assert out.tokens == greedy
  assert 0 < out.acceptance_rate < 1
  assert out.texts == [pair[0].tokenizer.decode(text) for text in greedy]
  # At temperature 0 a tree has the most probable tokens, not only the first.
  assert shape is not TREE or out.num_accepted_per_rank[:, 1:].any()


def test_dynamic_trees_are_greedy_too(pair, greedy):
  """Also if they are as deep as they have nodes, like a chain."""
  drafter = model_drafter(pair[1], DynamicTree.of(4, 3, 2), 'deterministic')
  args = dict(drafter=drafter, stop_tokens=[], **GREEDY)
  assert specsamp.generate(pair[0], PROMPTS, **args).tokens == greedy


@shapes
def test_a_row_is_the_same_in_any_batch(pair, shape):
  together = _run(*pair, shape, **RAGGED)
  assert [len(text) for text in together.tokens] == BUDGETS
  for rows in ([4, 3, 2, 1, 0], *([i] for i in range(5))):
    pick = lambda values, rows=rows: [values[i] for i in rows]
    out = _run(
      *pair,
      shape,
      prompts=pick(PROMPTS),
      max_new_tokens=pick(BUDGETS),
      seed=pick(SEEDS),
      sampling=jax.tree.map(
        lambda v, rows=rows: v[np.array(rows)], MIXED.broadcast(5)
      ),
    )
    assert out.tokens == pick(together.tokens), rows
    for name in (
      'rounds',
      'num_drafted_per_pos',
      'num_accepted_per_pos',
      'num_tried_per_rank',
      'num_accepted_per_rank',
    ):
      np.testing.assert_array_equal(
        getattr(out, name), pick(getattr(together, name))
      )


def _drafters(pair):
  target, draft = pair
  chain = TokenTree.chain(2)
  return {
    'model': model_drafter(draft, 2),
    'tree': model_drafter(draft, TokenTree.branching((2, 1))),
    **{
      kind: trained_drafter(tiny.trained(target, kind), target, chain)
      for kind in _KINDS
    },
  }


@pytest.mark.parametrize('name', ['model', 'tree', *_KINDS])
def test_draws_of_a_round_share_no_stream(pair, name, monkeypatch):
  """Draft, verdict and next token read one stream each, once."""
  request = Request.make(
    pair[0],
    PROMPTS,
    _drafters(pair)[name],
    'multi_candidate',
    max_new_tokens=4,
  )
  decoder, inputs = request.decoder, request.inputs
  used, real = [], draw.stream_keys
  monkeypatch.setattr(
    draw,
    'stream_keys',
    lambda keys, at, stream: used.append(stream) or real(keys, at, stream),
  )
  state = jax.eval_shape(
    lambda: decoder.prefill(inputs, request.prompts, request.capacity)
  )
  jax.eval_shape(lambda state: decoder.round(inputs, state), state)
  assert sorted(used) == [Stream.DRAFT, Stream.STOP, Stream.LEAVE]


# The caches.


@functools.partial(jax.jit, static_argnums=0)
def _whole_cache(transformer, params, tokens):
  cache = transformer.init_cache(params, *tokens.shape)
  return transformer.apply({'params': params}, tokens, cache=cache).cache


def _check_caches(request, state):
  """Checks that committed slots hold what one pass over the text writes.

  The last token has no entry yet: it is the next root. The draft may lack the
  token before it too, which its next round feeds first.
  """
  drafter = request.inputs.drafter
  for cache, transformer, params, missing in (
    (state.cache, request.model.transformer, request.model.params, 1),
    (state.drafter, drafter.transformer, drafter.params, 2),
  ):
    expected = _whole_cache(transformer, params, state.tokens)
    for one, other in zip(
      cache.keys + cache.values, expected.keys + expected.values, strict=True
    ):
      assert one.shape == other.shape
      for row, length in enumerate(np.asarray(state.length) - missing):
        np.testing.assert_allclose(
          one[row, :, :length], other[row, :, :length], atol=2e-5
        )


@pytest.mark.parametrize(
  ('shape', 'args'),
  [(3, RAGGED), (3, GREEDY), (TREE, RAGGED)],
  ids=['ragged', 'greedy', 'tree'],
)
def test_no_slot_is_stale_after_any_round(pair, shape, args):
  """Some rows are done, others are not."""
  request, state = _begin(*pair, shape, **args)
  for _ in range(6):
    state = request.decode(state, rounds=1)
    _check_caches(request, state)
  assert np.asarray(state.stats.num_accepted_per_pos)[:, 1].any()
  # Paths that had to move.
  ranks = np.asarray(state.stats.num_accepted_per_rank)
  assert shape is not TREE or ranks[:, 1:].any()


# Where a text ends.


def test_a_stop_token_inside_a_draft_cuts_the_text(pair, greedy):
  """The draft is the target, so all four tokens of a round are accepted."""
  target, _ = pair
  inside = set()
  for stop in range(target.config.vocab_size):
    out = _run(target, target, stop=[stop], **GREEDY)
    for row, text in enumerate(greedy):
      expected, end = text, None
      if stop in text:
        end = text.index(stop)
        expected = text[: end + 1]
        inside.add(end % 4)
      assert out.tokens[row] == expected
      assert out.texts[row] == target.tokenizer.decode(text[:end])
      assert out.rounds[row] == -(-len(expected) // 4)
  assert inside == {0, 1, 2, 3}  # at each place of a round


def test_many_stop_tokens_and_those_of_the_tokenizer(pair, greedy):
  """Programs are made for eight stop tokens; by default the eos stops."""
  target, _ = pair
  eos = greedy[0][2]
  expected = greedy[0][: greedy[0].index(eos) + 1]
  others = [t for t in range(target.config.vocab_size) if t not in greedy[0]]
  stops = [*(others * 9)[:8], eos]
  assert _run(target, None, stop=stops, **GREEDY).tokens[0] == expected
  tokenizer = dataclasses.replace(target.tokenizer, eos_id=eos)
  target = dataclasses.replace(target, tokenizer=tokenizer)
  assert _run(target, None, stop=None, **GREEDY).tokens[0] == expected


def test_budgets_are_exact(pair):
  """The draft is the target, so budgets end inside of drafts."""
  target, _ = pair
  sampling = SamplingParams(temperature=0.8)
  args = dict(prompts=[[6, 0, 3]] * 5, seed=[2] * 5, sampling=sampling)
  texts = []
  for budgets in ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]):
    out = _run(target, target, max_new_tokens=budgets, **args)
    assert [len(text) for text in out.tokens] == budgets
    texts += out.tokens
  # A budget ends a text and has no other effect.
  for text in texts:
    assert text == texts[-1][: len(text)]


# Streams and counts.


@pytest.mark.parametrize('args', [GREEDY, RAGGED], ids=['greedy', 'ragged'])
def test_a_stream_is_the_same_text(pair, args):
  whole = _run(*pair, **args)
  drafter = _make_drafter(pair[1], 3)
  rounds = list(
    specsamp.stream(pair[0], PROMPTS, drafter=drafter, stop_tokens=[], **args)
  )
  assert len(rounds) == whole.rounds.max()
  cut = 0
  for row, text in enumerate(whole.tokens):
    emitted = [r.tokens[row] for r in rounds]
    accepted = [r.num_accepted[row] for r in rounds]
    assert sum(emitted, []) == text
    # Counted by hand: a round of a row that is not done emits something.
    active = [i for i, tokens in enumerate(emitted) if tokens]
    assert active == list(range(whole.rounds[row]))
    assert not any(accepted[len(active) :])
    np.testing.assert_array_equal(whole.num_drafted_per_pos[row], len(active))
    for i in active[:-1]:
      assert len(emitted[i]) == accepted[i] + 1
    # The budget cuts the last round; accepted tokens that it cuts count.
    assert len(emitted[active[-1]]) <= accepted[active[-1]] + 1
    cut += len(emitted[active[-1]]) <= accepted[active[-1]]
    counts = [sum(n >= depth for n in accepted) for depth in (1, 2, 3)]
    assert whole.num_accepted_per_pos[row].tolist() == counts
  assert cut
  num_accepted, num_rounds = (
    whole.num_accepted_per_pos.sum(),
    whole.rounds.sum(),
  )
  assert whole.block_efficiency == pytest.approx(1 + num_accepted / num_rounds)
  assert whole.acceptance_rate == pytest.approx(num_accepted / (3 * num_rounds))


def test_counts_by_rank(pair):
  out = _run(*pair, TREE, **RAGGED | dict(max_new_tokens=20))
  tried, accepted = out.num_tried_per_rank, out.num_accepted_per_rank
  np.testing.assert_array_equal(
    accepted.sum(axis=1), out.num_accepted_per_pos.sum(axis=1)
  )
  # By hand: a round passes the root and every node that it accepts. Only the
  # root has three children.
  assert tried.shape == (5, 3)
  np.testing.assert_array_equal(tried[:, 2], out.rounds)
  assert (tried[:, 0] >= tried[:, 1]).all()
  assert (tried[:, 1] > out.rounds).any()
  assert (accepted <= tried).all()
  np.testing.assert_array_equal(
    out.num_drafted_per_pos, np.repeat(out.rounds[:, None], 3, 1)
  )


# Models that break down.


def _with_nan(model, path, index):
  leaves, tree = jax.tree_util.tree_flatten_with_path(model.params)
  leaves = [
    leaf.at[index].set(jnp.nan) if keys[-1].key == path else leaf
    for keys, leaf in leaves
  ]
  return dataclasses.replace(model, params=jax.tree.unflatten(tree, leaves))


def test_nan_logits_end_the_rows_that_have_them(pair, greedy):
  """A token with a broken embedding ends the rows that read it, no others."""
  pairs = list(zip(PROMPTS, greedy, strict=True))
  token = next(
    token
    for token in range(1, 11)
    if any(token in text[:-1] and token not in p for p, text in pairs)
    and not all(token in p + text[:-1] for p, text in pairs)
  )
  reads = [token in p + text[:-1] for p, text in pairs]
  broken = _with_nan(pair[0], 'embedding', token)
  rows = np.flatnonzero(reads).tolist()
  with pytest.raises(FloatingPointError) as error:
    _run(broken, None, **GREEDY)
  assert str(rows) in str(error.value)

  request, state = _begin(broken, None, **GREEDY)
  state = request.decode(state)
  assert np.asarray(state.done).all()
  np.testing.assert_array_equal(state.broken, reads)
  for row, text in enumerate(greedy):
    if token in PROMPTS[row]:
      text = []
    elif reads[row]:
      text = text[: text.index(token) + 1]
    tokens = np.asarray(state.tokens)[row, request.prompts.length[row] :]
    assert tokens[: len(text)].tolist() == text
    assert state.length[row] == request.prompts.length[row] + len(text)


@pytest.mark.parametrize('path', ['embedding', 'head'])
def test_a_draft_of_nan_costs_speed_only(pair, greedy, path):
  target, draft = pair
  # One token of the vocabulary, or all.
  for index in ((slice(None), 4) if path == 'head' else 4, slice(None)):
    broken = _with_nan(draft, path, index)
    assert _run(target, broken, **GREEDY).tokens == greedy
    out = _run(target, broken, **RAGGED)
    assert [len(text) for text in out.tokens] == BUDGETS


def test_a_prompt_whose_bucket_exceeds_the_cache(pair):
  """33 tokens are padded to 64, which a cache of 37 slots does not hold."""
  prompt = [[i % 11 for i in range(33)]]
  request = Request.make(pair[0], prompt, max_new_tokens=4, max_length=37)
  state = request.programs.prefill.eval_shape(request.inputs, request.prompts)
  assert state.tokens.shape == (1, request.capacity)


# Variants of the loop.


def test_paths_in_separate_rows_emit_the_same(pair):
  """The ablation of tree attention differs in time only."""
  for args in (RAGGED, GREEDY):
    one = _run(*pair, TREE, **args)
    other = _run(*pair, TREE, tree_attention=False, **args)
    assert one.tokens == other.tokens
    np.testing.assert_array_equal(
      one.num_accepted_per_rank, other.num_accepted_per_rank
    )


def test_coupled_text_is_the_same_whatever_is_drafted(pair):
  target, draft = pair
  args = dict(verifier='gumbel', stop_tokens=[])

  def run(draft, shape, **others):
    drafter = draft and model_drafter(draft, shape, 'deterministic', True)
    return specsamp.generate(
      target, PROMPTS, drafter=drafter, **args | RAGGED | others
    )

  alone = run(None, None)
  assert [len(text) for text in alone.tokens] == BUDGETS
  assert run(draft, TREE).tokens == alone.tokens
  # A draft that is the target runs the same races.
  equal = run(target, 2)
  assert equal.tokens == alone.tokens
  assert (equal.num_accepted_per_pos == equal.rounds[:, None]).all()
  # Other seeds have other texts, except in the greedy row.
  other = run(draft, TREE, seed=1)
  assert other.tokens[0] != alone.tokens[0]
  assert other.tokens[4] == alone.tokens[4]


@pytest.mark.extended
def test_coupled_branches(pair):
  """A trained drafter that runs the races has more tokens accepted."""
  target, draft = pair
  args = dict(law='deterministic', coupled=True)

  def run(drafter, prompts=PROMPTS, **others):
    return specsamp.generate(
      target,
      prompts,
      drafter=drafter,
      verifier='gumbel',
      stop_tokens=[],
      **RAGGED | others,
    )

  tree = lambda count: TokenTree.branching((count, 1))
  alone = run(None)
  outs = [run(model_drafter(draft, tree(k), **args)) for k in (1, 2, 4)]
  assert all(out.tokens == alone.tokens for out in outs)
  rounds = [int(out.rounds.sum()) for out in outs]
  assert rounds[0] > rounds[1] > rounds[2]
  eagle = tiny.trained(target, 'eagle')
  raced = run(trained_drafter(eagle, target, tree(4), **args))
  assert raced.tokens == alone.tokens
  assert raced.num_accepted_per_rank[:, 1].any()
  eagle = trained_drafter(eagle, target, tree(4), 'deterministic')
  likeliest = run(eagle)
  assert likeliest.tokens == alone.tokens
  assert likeliest.rounds.sum() > raced.rounds.sum()
