"""The loop, token for token: greedy texts, ragged rows, caches, cuts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp import SamplingParams
from specsamp.decoding.generate import complete
from specsamp.decoding.request import Request
from specsamp.drafting import TokenTree, model_drafter
from specsamp.drafting.trained import KINDS, trained_drafter
from specsamp.models import Transformer
from specsamp.sampling import draw
from specsamp.sampling.draw import Stream

# One batch of five rows and one bucket of 32 tokens for almost all tests, so
# that they run the same few programs.
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1], [8, 2, 8, 1, 8], [5, 5]]
BUDGETS = [20, 7, 12, 1, 15]
SEEDS = [11, 3, 3, 2**31 - 1, 0]
MIXED = SamplingParams(
  temperature=np.array([1.0, 0.7, 1.5, 1.0, 0.0]),
  top_k=np.array([0, 5, 0, 2, 0]),
  top_p=np.array([1.0, 1.0, 0.9, 1.0, 0.5]),
)
RAGGED = dict(max_new_tokens=BUDGETS, seed=SEEDS, sampling=MIXED)
_KINDS = [kind for kind in KINDS if tiny.layers(kind) == 1]
GREEDY = dict(max_new_tokens=20, sampling=SamplingParams(temperature=0.0))


def _run(target, draft, draft_len=3, *, prompts=PROMPTS, stop=(), **args):
  drafter = model_drafter(draft, draft_len) if draft else None
  return specsamp.generate(
    target, prompts, drafter=drafter, stop_tokens=stop, **args
  )


def _job(target, draft, *, stop=(), prompts=PROMPTS, verifier='token', **args):
  """The job and its final state, of what `generate` would run."""
  drafter = model_drafter(draft, 3) if draft else None
  job = Request.make(
    target,
    prompts,
    drafter,
    verifier,
    args['sampling'],
    args['max_new_tokens'],
    args.get('seed', 0),
    stop,
    tree_attention=True,
  )
  return job, job.decode(job.prefill())


def _text(job, state, row):
  tokens = np.asarray(state.tokens)[row]
  return tokens[job.prompts.length[row] : state.length[row]].tolist()


@pytest.fixture(scope='module')
def greedy(pair):
  """What the target alone emits, 20 tokens a row."""
  texts = _run(pair[0], None, **GREEDY).tokens
  # With less variety no mistake would show.
  assert all(len(set(text)) > 3 for text in texts)
  assert len({tuple(text) for text in texts}) == 5
  return texts


def test_greedy_is_the_argmax_of_the_whole_text(pair, greedy):
  """No cache, no loop: one pass over each text names its own next tokens."""
  target, _ = pair
  tokens = np.zeros((5, 32), np.int32)
  for row, prompt, text in zip(tokens, PROMPTS, greedy, strict=True):
    row[: len(prompt) + 20] = prompt + text
  out = jax.jit(target.transformer.apply)({'params': target.params}, tokens)
  best = np.asarray(out.logits).argmax(-1)
  for row, prompt, text in zip(best, PROMPTS, greedy, strict=True):
    assert row[len(prompt) - 1 :][:20].tolist() == text


@pytest.mark.parametrize(
  ('verifier', 'draft_len'),
  [
    ('token', 1),
    ('token', 3),
    ('block', 3),
    pytest.param('block', 6, marks=pytest.mark.slow),
  ],
)
def test_greedy_equals_autoregressive(pair, greedy, verifier, draft_len):
  got = _run(*pair, draft_len, verifier=verifier, **GREEDY)
  assert got.tokens == greedy
  # Some tokens were accepted and some were not.
  assert 0 < got.acceptance_rate < 1
  assert got.texts == [pair[0].tokenizer.decode(text) for text in greedy]


def test_a_row_alone_is_the_same(pair):
  together = _run(*pair, **RAGGED)
  assert [len(text) for text in together.tokens] == BUDGETS
  for i, prompt in enumerate(PROMPTS):
    alone = _run(
      *pair,
      prompts=[prompt],
      max_new_tokens=BUDGETS[i],
      seed=SEEDS[i],
      sampling=jax.tree.map(lambda v, i=i: v[i : i + 1], MIXED.broadcast(5)),
    )
    assert alone.tokens == [together.tokens[i]], i
    for name in ('rounds', 'num_drafted_per_pos', 'num_accepted_per_pos'):
      np.testing.assert_array_equal(
        getattr(alone, name)[0], getattr(together, name)[i]
      )


@pytest.mark.parametrize('verifier', ['token', 'block'])
def test_a_row_is_the_same_beside_other_rows(pair, verifier):
  together = _run(*pair, verifier=verifier, **RAGGED).tokens
  assert [len(text) for text in together] == BUDGETS
  for i in range(5):
    other = np.array([i, 4, 2, 0, 1])[[1, 0, 2, 3, 4]]
    other[2:] = (i + 2) % 5
    got = _run(
      *pair,
      verifier=verifier,
      prompts=[PROMPTS[row] for row in other],
      max_new_tokens=[3, BUDGETS[i], 9, 2, 5],
      seed=[8, SEEDS[i], 1, 6, 7],
      sampling=jax.tree.map(lambda v, o=other: v[o], MIXED.broadcast(5)),
    )
    assert got.tokens[1] == together[i], i


def test_rows_of_one_seed_and_prompt_agree_and_other_seeds_do_not(pair):
  args = dict(max_new_tokens=20, sampling=SamplingParams())
  got = _run(*pair, prompts=[[1, 2]] * 5, seed=[4, 9, 4, 10, 4], **args).tokens
  assert got[0] == got[2] == got[4]
  assert len({tuple(text) for text in got}) == 3
  counted = _run(*pair, prompts=[[1, 2]] * 5, seed=8, **args).tokens
  assert counted[1] == got[1] and counted[2] == got[3]


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
  """Draft, verdict and next token: of streams of their own, each read once."""
  job = Request.make(
    pair[0],
    PROMPTS,
    _drafters(pair)[name],
    'multi_candidate',
    max_new_tokens=4,
  )
  used, real = [], draw.stream_keys
  monkeypatch.setattr(
    draw,
    'stream_keys',
    lambda keys, at, stream: used.append(stream) or real(keys, at, stream),
  )
  state = jax.eval_shape(
    lambda: job.decoder.prefill(job.inputs, job.prompts, job.capacity)
  )
  jax.eval_shape(lambda state: job.decoder.round(job.inputs, state), state)
  assert sorted(used) == [Stream.DRAFT, Stream.STOP, Stream.LEAVE]


# The caches.


@functools.partial(jax.jit, static_argnums=0)
def _whole_cache(transformer, params, tokens):
  cache = transformer.init_cache(params, *tokens.shape)
  return transformer.apply({'params': params}, tokens, cache=cache).cache


def _check_caches(job, state):
  """Committed slots hold what one pass over the text puts there.

  The last token has none yet: it is the next root. The draft may lack the
  token before it too, which its next round feeds first.
  """
  drafter = job.inputs.drafter
  for got, transformer, params, missing in (
    (state.cache, job.model.transformer, job.model.params, 1),
    (state.drafter, drafter.transformer, drafter.params, 2),
  ):
    wanted = _whole_cache(transformer, params, state.tokens)
    for part in ('keys', 'values'):
      for one, other in zip(
        getattr(got, part), getattr(wanted, part), strict=True
      ):
        assert one.shape == other.shape
        for row, length in enumerate(np.asarray(state.length) - missing):
          np.testing.assert_allclose(
            one[row, :, :length], other[row, :, :length], atol=1e-5
          )


def test_a_draft_equal_to_the_target_is_accepted_whole(pair, greedy):
  target, _ = pair
  job, state = _job(target, target, **GREEDY)
  assert [_text(job, state, row) for row in range(5)] == greedy
  np.testing.assert_array_equal(state.stats.rounds, 5)  # of 4 tokens each
  np.testing.assert_array_equal(state.stats.num_accepted_per_pos, 5)
  _check_caches(job, state)


@pytest.mark.parametrize('args', [GREEDY, RAGGED], ids=['greedy', 'ragged'])
@pytest.mark.parametrize('verifier', ['token', 'block'])
def test_no_stale_slot(pair, verifier, args):
  job, state = _job(*pair, verifier=verifier, **args)
  assert np.asarray(state.stats.num_accepted_per_pos)[:, -1].any()
  _check_caches(job, state)


def test_no_stale_slot_between_rounds(pair):
  """A row that is done, and one that is not, after each number of rounds."""
  job, _ = _job(*pair, **RAGGED)
  state = job.prefill()
  for _ in range(6):
    state = job.decode(state, rounds=1)
    _check_caches(job, state)


# Where a text ends.


def test_a_stop_token_inside_a_draft_cuts_the_text(pair, greedy):
  """The draft is the target: rounds of four tokens, all of them accepted."""
  target, _ = pair
  inside = set()
  for stop in range(target.config.vocab_size):
    got = _run(target, target, stop=[stop], **GREEDY)
    for row, text in enumerate(greedy):
      wanted, end = text, None
      if stop in text:
        end = text.index(stop)
        wanted = text[: end + 1]
        inside.add(end % 4)
      assert got.tokens[row] == wanted
      assert got.texts[row] == target.tokenizer.decode(text[:end])
      assert got.rounds[row] == -(-len(wanted) // 4)
  assert inside == {0, 1, 2, 3}  # at each place of a round


def test_stop_tokens_of_a_sampled_text(pair):
  """Stopping changes no token before the stop, under any draft."""
  whole = _run(*pair, **RAGGED).tokens
  stops = [5, 9, 2]
  for draft in (pair[1], None):
    text = _run(pair[0], draft, **RAGGED).tokens
    if draft is pair[1]:
      assert text == whole
    got = _run(pair[0], draft, stop=stops, **RAGGED).tokens
    cut = 0
    for one, other in zip(got, text, strict=True):
      ends = [i for i, token in enumerate(other) if token in stops]
      assert one == other[: ends[0] + 1 if ends else None]
      cut += bool(ends)
    assert cut


def test_more_stop_tokens_than_a_program_is_made_for(pair, greedy):
  target, _ = pair
  eos = greedy[0][2]
  others = [t for t in range(target.config.vocab_size) if t not in greedy[0]]
  stops = [*(others * 9)[:8], eos]
  got = _run(target, None, stop=stops, **GREEDY)
  assert got.tokens[0] == greedy[0][: greedy[0].index(eos) + 1]


def test_the_tokenizers_eos_stops_by_default(pair, greedy):
  target, _ = pair
  eos = greedy[0][2]
  tokenizer = dataclasses.replace(target.tokenizer, eos_id=eos)
  target = dataclasses.replace(target, tokenizer=tokenizer)
  got = _run(target, None, stop=None, **GREEDY)
  assert got.tokens[0] == greedy[0][: greedy[0].index(eos) + 1]


@pytest.mark.parametrize('itself', [True, False], ids=['equal', 'other'])
def test_budgets_are_exact(pair, itself):
  target, draft = pair
  sampling = SamplingParams(temperature=0.8)
  args = dict(prompts=[[6, 0, 3]] * 5, seed=[2] * 5, sampling=sampling)
  texts = []
  for budgets in ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]):
    got = _run(
      target, target if itself else draft, max_new_tokens=budgets, **args
    )
    assert [len(text) for text in got.tokens] == budgets
    texts += got.tokens
  # A budget ends a text and does nothing else to it.
  for text in texts:
    assert text == texts[-1][: len(text)]


# Streams and counts.


@pytest.mark.parametrize('args', [GREEDY, RAGGED], ids=['greedy', 'ragged'])
def test_a_stream_is_the_same_text(pair, args):
  whole = _run(*pair, **args)
  rounds = list(
    specsamp.stream(
      pair[0],
      PROMPTS,
      drafter=model_drafter(pair[1], 3),
      stop_tokens=[],
      **args,
    )
  )
  assert len(rounds) == whole.rounds.max()
  cut = 0
  for row, text in enumerate(whole.tokens):
    emitted = [r.tokens[row] for r in rounds]
    accepted = [r.num_accepted[row] for r in rounds]
    assert sum(emitted, []) == text
    # Counted by hand: a round of a row that is not done emits something.
    played = [i for i, tokens in enumerate(emitted) if tokens]
    assert played == list(range(whole.rounds[row]))
    assert not any(accepted[len(played) :])
    np.testing.assert_array_equal(whole.num_drafted_per_pos[row], len(played))
    for i in played[:-1]:
      assert len(emitted[i]) == accepted[i] + 1
    # The budget cuts the last round, and what it cuts counts.
    assert len(emitted[played[-1]]) <= accepted[played[-1]] + 1
    cut += len(emitted[played[-1]]) <= accepted[played[-1]]
    counts = [sum(n >= depth for n in accepted) for depth in (1, 2, 3)]
    assert whole.num_accepted_per_pos[row].tolist() == counts
  assert cut
  assert whole.block_efficiency == pytest.approx(
    1 + whole.num_accepted_per_pos.sum() / whole.rounds.sum()
  )
  assert whole.acceptance_rate == pytest.approx(
    whole.num_accepted_per_pos.sum() / (3 * whole.rounds.sum())
  )


def test_counts_without_a_draft(pair):
  got = _run(pair[0], None, **RAGGED)
  assert got.rounds.tolist() == BUDGETS
  assert (
    got.num_drafted_per_pos.shape == got.num_accepted_per_pos.shape == (5, 0)
  )
  assert np.isnan(got.acceptance_rate)
  assert got.block_efficiency == 1


# Models that break down.


def _with_nan(model, path, index):
  leaves, tree = jax.tree_util.tree_flatten_with_path(model.params)
  leaves = [
    leaf.at[index].set(jnp.nan) if keys[-1].key == path else leaf
    for keys, leaf in leaves
  ]
  return dataclasses.replace(model, params=jax.tree.unflatten(tree, leaves))


def test_a_target_of_nan_names_the_rows(pair, greedy):
  # A token whose embedding is broken ends the rows that meet it, no others.
  for token in range(1, 11):
    met = [token in p + t[:-1] for p, t in zip(PROMPTS, greedy, strict=True)]
    later = [
      token not in p and token in t[:-1]
      for p, t in zip(PROMPTS, greedy, strict=True)
    ]
    if any(later) and not all(met):
      break
  else:
    pytest.fail('every token is in every text, or in no text')
  broken = _with_nan(pair[0], 'embedding', token)
  rows = np.flatnonzero(met).tolist()
  with pytest.raises(FloatingPointError) as error:
    _run(broken, None, **GREEDY)
  assert str(rows) in str(error.value)

  job, state = _job(broken, None, **GREEDY)
  assert np.asarray(state.done).all()
  np.testing.assert_array_equal(state.broken, met)
  for row, text in enumerate(greedy):
    if token in PROMPTS[row]:
      text = []
    elif met[row]:
      text = text[: text.index(token) + 1]
    assert _text(job, state, row) == text

  with pytest.raises(FloatingPointError):
    list(specsamp.stream(broken, PROMPTS, stop_tokens=[], **GREEDY))


@pytest.mark.parametrize('path', ['embedding', 'head'])
def test_a_draft_of_nan_costs_speed_only(pair, greedy, path):
  target, draft = pair
  # One token of the vocabulary, or all that it computes.
  for index in ((slice(None), 4) if path == 'head' else 4, slice(None)):
    broken = _with_nan(draft, path, index)
    assert _run(target, broken, **GREEDY).tokens == greedy
    got = _run(target, broken, **RAGGED)
    assert [len(text) for text in got.tokens] == BUDGETS


class Padded(Transformer):
  """Its vocabulary is padded: the last tokens have no logit."""

  def logits(self, hidden):
    logits = super().logits(hidden)
    token = jnp.arange(logits.shape[-1])
    return jnp.where((token >= 6)[None, None], -jnp.inf, logits)


def test_a_draft_that_cannot_emit_every_token(pair, greedy):
  target, draft = pair
  padded = dataclasses.replace(
    draft, transformer=Padded(draft.transformer.config)
  )
  assert max(map(max, greedy)) >= 6
  assert _run(target, padded, **GREEDY).tokens == greedy
  got = _run(target, padded, **RAGGED)
  assert [len(text) for text in got.tokens] == BUDGETS
  assert max(map(max, got.tokens)) >= 6


def test_a_prompt_whose_bucket_exceeds_the_cache(pair):
  """33 tokens are padded to 64, which a cache of 37 slots does not hold."""
  prompt = [[i % 11 for i in range(33)]]
  args = dict(
    drafter=model_drafter(pair[1], 2), max_new_tokens=4, stop_tokens=()
  )
  request = Request.make(pair[0], prompt, max_length=37, **args)
  assert (
    complete(request).tokens
    == specsamp.generate(pair[0], prompt, **args).tokens
  )
