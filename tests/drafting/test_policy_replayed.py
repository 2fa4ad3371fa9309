"""What choosing costs: a text's rounds replayed with chances that are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.drafting import TokenTree
from specsamp.drafting.draft import Draft
from specsamp.drafting.policy import Policy

DEPTHS = (0, 1, 2, 4, 6, 8)
# Of the embedded target and EAGLE on two cores.
MS = np.asarray([4.8, 7.9, 8.4, 9.5, 11.4, 14.6], np.float32)
_TREE = TokenTree.chain(DEPTHS[-1])
_TEXTS, _TOKENS = 384, 128
_ACTIVE = np.ones(1, bool)


def _round(policy, chance, key):
  """The policy after one, what it emits and what it takes."""
  chosen = policy.choose(DEPTHS, jnp.asarray(MS), _ACTIVE, refilled=True)
  depth = jnp.asarray(DEPTHS)[chosen]
  at = np.arange(_TREE.size)
  kept = jax.random.uniform(key, (_TREE.depth,)) < chance
  accepted = jnp.cumprod(kept & (at[1:] <= depth)).sum()
  draft = Draft(
    jnp.zeros((1, _TREE.size), jnp.int32), None, _TREE, 'iid',
    (at <= depth)[None],
  )  # fmt: skip
  policy = policy.seen(draft, depth, accepted[None], _ACTIVE)
  return policy, 1 + accepted, jnp.asarray(MS)[chosen]


@jax.jit
def _engine(chance_x, key):
  """Tokens a millisecond of texts of these chances, one after the other."""

  def text(of_all, inputs):
    chance, key = inputs

    def step(carry):
      policy, tokens, ms, key = carry
      key, own = jax.random.split(key)
      policy, new, taken = _round(policy, chance, own)
      return policy, tokens + new, ms + taken, key

    policy = Policy.of(1, _TREE.depth).replace(of_all=of_all)
    policy, tokens, ms, _ = jax.lax.while_loop(
      lambda carry: carry[1] < _TOKENS, step, (policy, 0, 0.0, key)
    )
    return policy.of_all, (tokens, ms)

  of_all = Policy.of(1, _TREE.depth).of_all
  keys = jax.random.split(key, len(chance_x))
  _, (tokens_x, ms_x) = jax.lax.scan(text, of_all, (chance_x, keys))
  return tokens_x.sum().astype(jnp.float32) / ms_x.sum()


def _of_fixed(chance):
  """Tokens a millisecond of each fixed depth."""
  tokens = [sum(chance**i for i in range(depth + 1)) for depth in DEPTHS]
  return np.asarray(tokens) / MS


@pytest.mark.parametrize('chance', [0.01, 0.3, 0.4, 0.5, 0.55, 0.6, 0.7, 0.9])
def test_of_texts_that_are_alike_it_loses_little(chance):
  """Nothing is to be gained by a choice; what is lost is noise and tries."""
  chosen = _engine(jnp.full(_TEXTS, chance), jax.random.key(0))
  assert chosen > 0.975 * max(_of_fixed(chance))


@pytest.mark.parametrize(
  ('chances', 'in_a_row', 'gain'),
  [((0.2, 0.9), 1, 1.2), ((0.3, 0.8), 1, 1.15), ((0.3, 0.8), 8, 1.17)],
)
def test_of_texts_that_differ_it_gains(chances, in_a_row, gain):
  """Over the length that is best for all of them, which is not for each."""
  chance_x = np.repeat(np.tile(chances, _TEXTS // 2 // in_a_row), in_a_row)
  chosen = _engine(jnp.float32(chance_x), jax.random.key(0))
  fixed = max(2 / sum(1 / _of_fixed(chance) for chance in chances))
  assert chosen > gain * fixed
