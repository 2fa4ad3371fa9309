"""Mistakes that the test of the target's distribution must find.

Enumeration finds wrong verifiers too.
"""

import dataclasses

import jax.numpy as jnp
import pytest
from flax import struct
from laws import (
  GROUPS,
  PLAIN,
  VOCAB,
  distributions_of,
  drafter_of,
  p_values_of,
  texts,
)
from testing import tiny

from specsamp.drafting import LanguageModelDrafter, TokenTree
from specsamp.sampling import draw
from specsamp.verification.token import TokenVerifier

pytestmark = [
  pytest.mark.integration,
  pytest.mark.usefixtures('optimized'),
]


@pytest.fixture(scope='module')
def pair():
  """Target and draft, whose distributions overlap by about a half."""
  return tiny.model(VOCAB, 0, max_length=8), tiny.draft(VOCAB, 1, max_length=8)


@pytest.fixture(scope='module')
def distributions(pair):
  return distributions_of(pair[0])


def _check_fails(pair, distributions, drafter, verifier):
  counts, _ = texts(
    pair[0], GROUPS, 5, drafter=drafter, verifier=verifier, seed=4
  )
  p_values = p_values_of(GROUPS, counts, distributions)
  assert p_values[PLAIN.name, 'first three'] < 1e-6


@dataclasses.dataclass(frozen=True)
class WrongResidual(TokenVerifier):
  """Draws from p after a rejection, not from the residual distribution."""

  def leave_probs(self, draft, p_bnv, node_b):
    return jnp.take_along_axis(p_bnv, node_b[:, None, None], axis=1)[:, 0]


@pytest.mark.slow
def test_a_wrong_residual_fails(pair, distributions):
  _check_fails(pair, distributions, drafter_of(pair, 1), WrongResidual())


@struct.dataclass
class WrongQ(LanguageModelDrafter):
  """Reports q at another temperature than it draws from."""

  def propose(self, *args):
    draft, state = super().propose(*args)
    q = jnp.sqrt(draft.q)
    return draft.replace(q=q / q.sum(axis=-1, keepdims=True)), state


def _as(kind, drafter):
  names = [field.name for field in dataclasses.fields(drafter)]
  return kind(**{name: getattr(drafter, name) for name in names})


def test_a_wrong_q_fails(pair, distributions):
  _check_fails(pair, distributions, _as(WrongQ, drafter_of(pair, 1)), 'token')


@dataclasses.dataclass(frozen=True)
class Retraced(TokenVerifier):
  """The right rule by another name, so that it is compiled again."""


@struct.dataclass
class Mislabelled(LanguageModelDrafter):
  """States a law without replacement, but draws with replacement."""

  def propose(self, *args):
    draft, state = super().propose(*args)
    return draft.replace(law='without_replacement'), state


@pytest.mark.slow
def test_draws_with_replacement_called_without_fail(pair, distributions):
  drafter = drafter_of(pair, TokenTree.branching((3,)))
  drafter = _as(Mislabelled, drafter)
  _check_fails(pair, distributions, drafter, 'multi_candidate')


def test_bits_shared_by_draft_and_verdict_fail(
  pair, distributions, monkeypatch
):
  stream_keys = draw.stream_keys
  monkeypatch.setattr(
    draw,
    'stream_keys',
    lambda keys, at, stream: stream_keys(keys, at, draw.Stream.DRAFT),
  )
  _check_fails(pair, distributions, drafter_of(pair, 1), Retraced())
