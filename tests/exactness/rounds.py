"""What else is asked of an enumerated round."""

import numpy as np


def possible(round_):
  """bool [B, N]: drafted, and neither it nor an ancestor has p(x) = 0."""
  found = round_.drafts.valid.copy()
  for node, parent in enumerate(round_.tree.parents[1:], start=1):
    tokens = round_.drafts.tokens[:, node, None]
    p = np.take_along_axis(round_.drafts.p[:, parent], tokens, axis=1)[:, 0]
    found[:, node] &= found[:, parent] & (p > 0)
  return found


def expected_tokens(round_):
  lengths = np.array(round_.tree.depths) + 1
  return (round_.drafts.weight[:, None] * round_.stop * lengths).sum()
