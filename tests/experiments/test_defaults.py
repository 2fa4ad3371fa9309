"""A drafter alone, or a verifier alone, says what the other one must be."""

from typing import get_args

import pytest
from testing import tiny

import specsamp
from specsamp import verification
from specsamp.drafting import (
  TokenTree,
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
)
from specsamp.drafting.draft import DynamicTree, Law
from specsamp.drafting.drafter import NoDrafter
from specsamp.errors import UserError
from specsamp.experiments import loading

_TREE = TokenTree.branching((2, 1))
_DYNAMIC = DynamicTree.of(6, 3, 2)


@pytest.mark.parametrize('tree', [TokenTree.chain(3), _TREE])
@pytest.mark.parametrize('law', get_args(Law))
def test_every_law_has_a_lossless_verifier(law, tree):
  rule = verification.make(verification.default_name(law, tree))
  assert rule.lossless
  verification.check_law(rule, law, tree)  # raises otherwise
  verification.check_law(
    verification.make(verification.default_name('deterministic', _DYNAMIC)),
    'deterministic',
    _DYNAMIC,
  )


@pytest.mark.parametrize('name', ['', 'ngram', 'lookahead', 'ngram_or_draft'])
@pytest.mark.parametrize('verifier', ['', *verification.VERIFIERS])
def test_law_of_a_drafter_and_a_verifier(name, verifier):
  target = tiny.model(26, seed=0)
  models = loading.Models(target, lambda: tiny.first_layer(target), {})
  shape = 3 if verifier in ('', 'token', 'block') else _TREE
  if name == 'ngram_or_draft' or verifier == 'greedy_block':
    shape = 3
  if (name, verifier) == ('ngram_or_draft', 'top_plus_one'):
    return  # it drafts no candidates of this law
  drafter = models.drafter(name, shape, verifier=verifier)
  rule = verifier or verification.default_name(drafter.law, drafter.tree)
  if name in ('ngram', 'lookahead'):
    assert drafter.law == 'deterministic'
    if verifier not in ('', 'naive', 'gumbel', 'typical_lossy'):
      return  # refused when decoding: no choice of the law helps
  verification.check_law(verification.make(rule), drafter.law, drafter.tree)


def test_a_coupled_verifier_has_the_draft_run_its_races():
  target = tiny.model(26, seed=0)
  models = loading.Models(target, lambda: tiny.first_layer(target), {})
  assert models.drafter('', 3, verifier='gumbel').coupled
  assert not models.drafter('', 3, 'iid', 'gumbel').coupled


@pytest.mark.parametrize('kind', ['ngram', 'lookahead', 'dynamic', 'top', 'wr'])
def test_generate_and_engine_choose_the_verifier(kind):
  target = tiny.model(26, seed=0)
  draft = tiny.first_layer(target)
  drafter, rule = {
    'ngram': lambda: (ngram_drafter(3), 'naive'),
    'lookahead': lambda: (lookahead_drafter(3, 3), 'naive'),
    'dynamic': lambda: (
      model_drafter(draft, _DYNAMIC, 'deterministic'),
      'naive',
    ),
    'top': lambda: (
      model_drafter(draft, _TREE, 'top_plus_one'),
      'top_plus_one',
    ),
    'wr': lambda: (
      model_drafter(draft, _TREE, 'without_replacement'),
      'multi_candidate',
    ),
  }[kind]()
  run = lambda **verifier: specsamp.generate(
    target, 'abcab', drafter=drafter, max_new_tokens=8, seed=3, **verifier
  )
  chosen = run()
  assert chosen.tokens == run(verifier=rule).tokens
  engine = specsamp.Engine(target, slots=1, drafter=drafter, max_length=32)
  (same,) = engine.generate(['abcab'], max_new_tokens=8, seed=3)
  assert same.tokens == chosen.tokens[0]


@pytest.mark.parametrize('name', [*verification.VERIFIERS, 'own.module:Rule'])
def test_every_rule_has_one_without_a_draft(name):
  rule = verification.make(verification.name_without_draft(name))
  verification.check_law(rule, 'iid', NoDrafter().tree)
  if name == 'gumbel':  # whose text is the same with and without a draft
    assert verification.is_coupled(rule)


def test_no_drafter_by_name():
  target = tiny.model(26, seed=0)
  models = loading.Models(target, lambda: pytest.fail('not needed'), {})
  drafter = models.drafter('none', 4)
  assert isinstance(drafter, NoDrafter) and drafter.tree.depth == 0
  with pytest.raises(UserError, match="'nome'.*none"):
    models.drafter('nome', 4)
