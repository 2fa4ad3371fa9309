"""Speedups on accelerators from a measured τ."""

import pytest
from testing import tiny

from specsamp.drafting import model_drafter, ngram_drafter, trained_drafter
from specsamp.drafting.draft import TokenTree
from specsamp.models import presets
from specsamp.planning import accelerators
from specsamp.planning.accelerators import Shapes

_TREE = TokenTree.branching((3, 2))


@pytest.mark.parametrize(
  ('kind', 'tree', 'passes'),
  [
    ('model', 4, [1, 1, 1, 1]),
    ('model', _TREE, [1, 3]),
    ('eagle', 3, [1, 1, 1]),
    ('eagle_parallel', 3, [3]),
    ('medusa', 3, [3]),
    ('ngram', 3, []),
  ],
)
def test_passes_of_a_draft(kind, tree, passes):
  target = tiny.model(29, 0)
  if kind == 'model':
    drafter = model_drafter(tiny.draft(29, 1), tree)
  elif kind == 'ngram':
    drafter = ngram_drafter(tree)
  else:
    drafter = trained_drafter(tiny.trained(target, kind, 4), target, tree)
  assert accelerators.draft_passes(drafter) == passes
  assert set(accelerators.speedups(drafter, 2.0)) == {'v5e', 'v5p', 'h100:1'}


def test_a_draft_of_the_targets_weights_has_no_prediction():
  """It costs nearly what the target costs, unlike a small draft model."""
  target = tiny.model(29, 0)
  drafter = model_drafter(target, 4, of_target=True)
  assert accelerators.speedups(drafter, 4.8) == {}


@pytest.mark.parametrize('speedup', [1.92, 2.01, 2.46])
def test_chinchillas_published_times(speedup):
  """Chen et al.: 14.1 ms a token, 1.8 ms a draft token, drafts of four.

  Their speedups imply a τ; with it the prediction returns the speedup.
  """
  shapes = Shapes(
    'v4:2x2x4', presets.chinchilla_70b(), presets.chinchilla_draft_4b()
  )
  score_ms = 14.1  # a pass over five tokens costs little more
  tau = speedup * (4 * 1.8 + score_ms) / 14.1
  predicted = accelerators.speedup(shapes, tau, 5, [1] * 4)
  assert predicted == pytest.approx(speedup, rel=0.05)
