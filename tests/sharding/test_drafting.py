"""What no CPU runs, run here: one token is padded to two, and nobody sees.

`lax.platform_dependent` picks a branch for the platform that is compiled for;
here it is made to pick the TPU's.
"""

import jax
import pytest
from testing import tiny

import specsamp
from specsamp.drafting import model_drafter

pytestmark = pytest.mark.extended

_VOCAB = 64
_PROMPTS = ['abc', 'a', 'zxyw']
_SAMPLING = specsamp.SamplingParams(
  temperature=[1.0, 0.0, 0.7], top_k=[0, 0, 20]
)


def _generate(max_length, draft_len):
  # The limit of positions is no part of the numbers, but of what a program is
  # looked up by: another one is traced anew.
  target = tiny.model(_VOCAB, seed=0, max_length=max_length)
  draft = tiny.first_layer(target)
  return specsamp.generate(
    target,
    _PROMPTS,
    drafter=model_drafter(draft, draft_len) if draft_len else None,
    sampling=_SAMPLING,
    max_new_tokens=[14, 12, 9],
    seed=7,
  )


@pytest.mark.parametrize(
  ('draft_len', 'expected'),
  [(0, {'padded', 'apart'}), (3, {'both', 'apart'})],
  ids=['autoregressive', 'chain'],
)
def test_padded_tokens_are_never_seen(monkeypatch, draft_len, expected):
  on_cpu = _generate(64, draft_len)
  taken = set()

  def as_on_tpu(*args, default=None, tpu=None, **_):
    branch = tpu or default
    taken.add(getattr(branch, '__name__', ''))
    return branch(*args)

  monkeypatch.setattr(jax.lax, 'platform_dependent', as_on_tpu)
  got = _generate(61, draft_len)
  assert taken >= expected
  assert got.tokens == on_cpu.tokens
  assert got.rounds.tolist() == on_cpu.rounds.tolist()
  assert (
    got.num_accepted_per_pos.tolist() == on_cpu.num_accepted_per_pos.tolist()
  )
