"""n-gram drafts equal those of a plain search."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing import tiny

import specsamp
from specsamp.drafting import TokenTree, ngram_drafter
from specsamp.errors import UserError
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams

SLOTS = 24
DATASTORE = ([1, 0, 2, 1, 1, 0], [], [2], [0, 1, 0, 1, 2, 2, 0])
_ONE, _TWO = 3, TokenTree.branching((2, 1))
# Shape, n_max, n_min, whether a datastore, whether a reference.
KINDS = {
  'chain': (_ONE, 3, 1, False, False),
  'only long matches': (_ONE, 4, 3, False, False),
  'several': (_TWO, 3, 1, False, False),
  'uneven': (TokenTree((-1, 0, 0, 0, 1, 3, 4)), 2, 2, False, False),
  'datastore': (_ONE, 3, 1, True, False),
  'several of all': (_TWO, 2, 1, True, True),
}


def _check_branches(text, documents, lengths, n_max, n_min, branches):
  """Checks that each branch is one of the best that remain at its turn.

  Args:
    text: the row's tokens, the root last.
    documents: further texts to search.
    lengths: lengths of the branches.
    n_max: tokens of the longest match.
    n_min: tokens of the shortest match.
    branches: drafted branches, lists of tokens.
  """
  longest = max(lengths)
  matches = []  # (length of the match, of the continuation, the continuation)
  for document in (text, *documents):
    for end in range(1, len(document)):
      for n in range(n_max, n_min - 1, -1):
        if n <= min(end, len(text)) and document[end - n : end] == text[-n:]:
          after = document[end : end + longest]
          matches.append((n, len(after), after))
          break
  for length, branch in zip(lengths, branches, strict=True):
    best = max((match[:2] for match in matches), default=None)
    equal = [match[2][:length] for match in matches if match[:2] == best]
    assert branch in (equal or [[]]), (text, documents)
    matches = [match for match in matches if match[2][:1] != branch[:1]]


def _chains(tree):
  """Returns the nodes of each branch."""
  chains = [[node] for node in tree.children(0)]
  for chain in chains:
    while tree.children(chain[-1]):
      chain += tree.children(chain[-1])
  return chains


def _branches(draft, row):
  """Returns the valid tokens of each branch."""
  branches = []
  for chain in _chains(draft.tree):
    valid = draft.valid[row, chain]
    length = len(chain) if valid.all() else int(valid.argmin())
    branches.append(draft.tokens[row, chain[:length]].tolist())
  return branches


@jax.jit
def _propose(drafter, tokens_bs, length_b, seeds_b):
  keys_b = draw.row_keys(seeds_b)
  sampling = SamplingParams().broadcast(len(length_b))
  draft, _ = drafter.propose((), tokens_bs, length_b, sampling, keys_b)
  return draft


_random = st.lists(st.integers(0, 2), min_size=1, max_size=SLOTS)
_periodic = st.builds(
  lambda period, size: (period * SLOTS)[:size],
  st.lists(st.integers(0, 2), min_size=1, max_size=4),
  st.integers(1, SLOTS),
)
_text = st.one_of(_random, _periodic)


@pytest.mark.parametrize('kind', KINDS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_drafts_are_those_of_a_plain_search(kind, data):
  """40 batches of 8 rows for each of 6 drafters: 1,920 texts."""
  shape, n_max, n_min, has_datastore, has_reference = KINDS[kind]
  rows = data.draw(st.lists(_text, min_size=8, max_size=8))
  seeds = data.draw(st.lists(st.integers(0, 99), min_size=8, max_size=8))
  reference = None
  if has_reference:
    text = st.lists(st.integers(0, 2), max_size=8)
    reference = data.draw(st.lists(text, min_size=7, max_size=7))
    reference.append([0] * 8)  # so that all have one shape
  drafter = ngram_drafter(
    shape, n_max, n_min, reference, DATASTORE if has_datastore else None
  )
  # Tokens past a row's text are noise that must not be read.
  tokens_bs = np.full((8, SLOTS + 8), 1, np.int32)
  for into, row in zip(tokens_bs, rows, strict=True):
    into[: len(row)] = row
  length_b = np.asarray([len(row) for row in rows], np.int32)
  draft = jax.tree.map(
    np.asarray, _propose(drafter, tokens_bs, length_b, np.asarray(seeds))
  )
  assert draft.tokens[:, 0].tolist() == [row[-1] for row in rows]
  assert draft.valid[:, 0].all()
  for i, row in enumerate(rows):
    documents = [reference[i]] if has_reference else []
    documents += DATASTORE if has_datastore else []
    lengths = list(map(len, _chains(drafter.tree)))
    branches = _branches(draft, i)
    _check_branches(row, documents, lengths, n_max, n_min, branches)


def test_ties_are_broken_evenly_by_the_seed():
  rows = 4096
  text = [1, 5, 1, 6, 1, 7, 1]
  tokens_bs = np.broadcast_to(np.asarray(text, np.int32), (rows, len(text)))
  length_b = np.full(rows, len(text), np.int32)
  draft = _propose(
    ngram_drafter(1), tokens_bs, length_b, np.arange(rows, dtype=np.int32)
  )
  counts = np.bincount(np.asarray(draft.tokens[:, 1]), minlength=8)
  assert counts[[5, 6, 7]].sum() == rows
  assert abs(counts[[5, 6, 7]] - rows / 3).max() < 4 * (rows * 2 / 9) ** 0.5


def test_no_text_of_a_row_reaches_another():
  """Alone a row has rounds without a draft, which run another pass."""
  prompts = [[1, 2, 3, 1, 2], [4], [5, 5, 5, 5], [9, 8, 7, 9]]
  temperatures, budgets = [1.0, 0.0, 0.7, 1.0], [9, 5, 12, 7]

  def run(rows):
    return specsamp.generate(
      tiny.model(11, 28),
      [prompts[i] for i in rows],
      drafter=ngram_drafter(TokenTree.branching((2, 1, 1)), 3, 1),
      sampling=SamplingParams(temperature=[temperatures[i] for i in rows]),
      max_new_tokens=[budgets[i] for i in rows],
      seed=[3 + i for i in rows],
    )

  together = run(range(4))
  for i in (1, 3):
    alone = run([i])
    assert alone.tokens == [together.tokens[i]]
    for name in ('rounds', 'num_drafted_per_pos', 'num_accepted_per_pos'):
      np.testing.assert_array_equal(
        getattr(alone, name)[0], getattr(together, name)[i]
      )
    assert alone.num_drafted_per_pos[0, 0] < alone.rounds[0]


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (dict(shape=0), 'draft length: got 0, expected at least 1'),
    (dict(shape=TokenTree.branching((2, 2))), 'parts at the root only'),
    (dict(n_max=2, n_min=3), 'n_max 2 and n_min 3'),
    (dict(n_max=2.0), 'n_max 2.0'),
    (dict(datastore=[[]]), 'datastore: got no tokens'),
    (dict(datastore=['abc']), 'datastore: expected lists of token'),
    (dict(datastore=[1, 2]), 'datastore: expected lists of token'),
    (dict(datastore=[[2**32]]), 'datastore: expected lists of token'),
    (dict(reference=[[1, -1]]), 'reference: expected lists of token'),
    (dict(datastore=[[10, 11]]), 'got token 11, the target has 11'),
    (dict(reference=[[1]]), 'got 1 texts for a batch of 3'),
    (dict(reference=[]), 'got 0 texts for a batch of 3'),
  ],
)
def test_invalid_arguments(arguments, message):
  with pytest.raises(UserError, match=message):
    ngram_drafter(**arguments).check(tiny.model(11, 28), 3)


def test_texts_are_padded_to_a_power_of_two():
  """Texts of other lengths compile nothing."""
  reference = ngram_drafter(2, reference=[[1, 2], [1, 2, 1, 2, 3]]).reference
  assert reference.tokens.shape == (2, 8)
  store = ngram_drafter(2, datastore=[[1, 2], [], [3]]).datastore
  assert store.tokens.tolist() == [[-1, 1, 2, -1, -1, 3, -1, -1]]
