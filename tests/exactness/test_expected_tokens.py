r"""How many tokens rules for trees accept, and the largest possible number.

  python tests/exactness/test_expected_tokens.py trees.png

prints a table of exact means over random models, and plots it. One of its rules
is written here in plain numpy, and traversal is compared with the same code.
"""

import functools
import sys

import matplotlib.figure
import numpy as np
import pytest
from rounds import check_lossless, cut_tables

from specsamp.conformance.enumeration import (
  TOLERANCE,
  Outcome,
  Table,
  enumerate_drafts,
  run_tables,
)
from specsamp.drafting import TokenTree
from specsamp.evaluation import bounds
from specsamp.evaluation.reporting import report
from specsamp.verification import make

TREE = TokenTree.branching((2, 2))
WITHOUT, TOP, IID = 'without_replacement', 'top_plus_one', 'iid'
# name, rule, law. The rule that is not of the package is `_plain`.
RULES = (
  ('recursive rejection', 'multi_candidate', WITHOUT),
  ('traversal', 'traversal', WITHOUT),
  ('top down', 'top_plus_one', TOP),
  ('traversal', 'traversal', TOP),
  ('traversal, drawn child last', '', TOP),
  ('traversal', 'traversal', IID),
)


def _models(vocab: int, mix: float, count: int = 8) -> list[Table]:
  """Returns random models whose q is p with this weight."""
  tables = []
  for seed in range(count):
    rng = np.random.default_rng(seed)
    random = lambda depth, rng=rng: [
      rng.dirichlet(np.ones(vocab), (vocab,) * i) for i in range(depth)
    ]
    p, other = random(TREE.depth + 1), random(TREE.depth)
    q = [mix * x + (1 - mix) * y for x, y in zip(p, other, strict=False)]
    valid = [np.ones(x.shape[:-1] + (TREE.width,), bool) for x in q]
    tables.append(Table(str(seed), p, q, valid))
  return tables


def _visit(tree, tokens, p_nv, q_iv, last_first):
  """Returns stop [N] and leave [N, V] of one whole `top_plus_one` draft."""
  stop, leave = np.zeros(tree.size), np.zeros_like(p_nv)

  def visit(node, r, arrive):
    """Returns the probability to come back from a node of weight r."""
    p, kids = p_nv[node], tree.children(node)
    for kid in (*kids[-1:], *kids[:-1]) if last_first else kids:
      x = tokens[kid]
      q = np.eye(len(p))[x]
      if kid == kids[-1]:
        q = q_iv[tree.internal.index(node)].copy()
        q[tokens[list(kids[:-1])]] = 0
        q /= q.sum()
      arrive = visit(kid, min(1, r * p[x] / q[x]), arrive)
      e = np.maximum(r * p - q, 0)
      if e.sum() > 0:
        p, r = e / e.sum(), e.sum() / (e.sum() + (1 - r))
      elif r < 1:
        r = 0
    stop[node], leave[node] = arrive * r, p
    return arrive * (1 - r)

  visit(0, 1, 1)
  return stop, leave


def _plain(table: Table, tree: TokenTree, last_first: bool) -> Outcome:
  drafts = enumerate_drafts(table, tree, TOP)
  rows = [
    _visit(tree, tokens, p, q, last_first)
    for tokens, p, q in zip(drafts.tokens, drafts.p, drafts.q, strict=True)
  ]
  return Outcome(table, tree, drafts, *map(np.array, zip(*rows, strict=True)))


def _outcomes(rule, law, tables):
  if rule:
    return run_tables(make(rule), tables, TREE, law)
  return [_plain(table, TREE, last_first=False) for table in tables]


def _accepted(outcomes) -> np.ndarray:
  depths = np.array(TREE.depths)
  return np.array(
    [(o.drafts.weight[:, None] * o.stop * depths).sum() for o in outcomes]
  )


@functools.cache
def _best(vocab, mix, law):
  return np.array(
    [
      bounds.best_accepted_length(table, TREE, law)
      for table in _models(vocab, mix)
    ]
  )


@pytest.mark.parametrize(
  'tree', [TREE, TokenTree((-1, 0, 0, 0, 1, 3, 3))], ids=['2x2', 'uneven']
)
def test_traversal_is_the_plain_recursion(tree):
  """Of whole drafts whose p and q have no zeros."""
  tables = [
    table
    for table in cut_tables(4, tree, seed=2)
    if table.name.endswith('whole') and all((q > 0).all() for q in table.q)
  ]
  assert len(tables) > 4
  for found in run_tables(make('traversal'), tables, tree, TOP):
    plain = _plain(found.table, tree, last_first=True)
    ended, expected = (o.stop[..., None] * o.leave for o in (found, plain))
    np.testing.assert_allclose(ended, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(('vocab', 'mix'), [(3, 0), (4, 0.5)])
def test_rules_by_the_tokens_they_accept(vocab, mix):
  """Traversal, drawn child first, is near the bound of its drafts."""
  tables = _models(vocab, mix)
  found = {}
  for _, rule, law in RULES:
    outcomes = _outcomes(rule, law, tables)
    for outcome in outcomes:
      check_lossless(outcome)
    found[rule, law] = _accepted(outcomes)
    if vocab == 3 or law == TOP:  # the others take a second
      assert (found[rule, law] <= _best(vocab, mix, law) + 1e-6).all()
  best = found.pop(('traversal', TOP))
  assert best.mean() > 0.98 * _best(vocab, mix, TOP).mean()
  for (_, law), others in found.items():
    assert best.mean() > others.mean()
    if law == TOP:
      assert (best >= others - TOLERANCE).all()


def main(plot: str = '') -> None:
  settings = {'V 3, independent q': (3, 0), 'V 4, q half p': (4, 0.5)}
  rows = [{'rule': rule, 'law': law} for rule, _, law in RULES]
  figure = matplotlib.figure.Figure((9, 3.6), layout='constrained')
  panels = figure.subplots(1, len(settings), sharey=True)
  for (title, size), panel in zip(settings.items(), panels, strict=True):
    tables = _models(*size)
    for i, (row, (_, rule, law)) in enumerate(zip(rows, RULES, strict=True)):
      accepted, best = (
        _accepted(_outcomes(rule, law, tables)),
        _best(*size, law),
      )
      row[title] = accepted.mean()
      row[f'{title}: bound'] = best.mean()
      row[f'{title}: share'] = accepted.mean() / best.mean()
      panel.barh(i, accepted.mean(), color='tab:blue', alpha=0.6)
      panel.plot(accepted, [i] * len(accepted), '.', color='black', ms=3)
      panel.plot(best.mean(), i, 'D', color='black', ms=5)
    panel.set_title(f'{title}: accepted tokens', fontsize=9)
  names = [f'{rule}\n{law}' for rule, _, law in RULES]
  panels[0].set_yticks(range(len(RULES)), names, fontsize=8)
  panels[0].invert_yaxis()
  print(report.Table(rows, digits=4).render())
  if plot:
    figure.savefig(plot, dpi=120)


if __name__ == '__main__':
  main(*sys.argv[1:2])
