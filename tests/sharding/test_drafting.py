"""Programs of accelerators, run on a CPU: padding tokens have no effect.

`lax.platform_dependent` chooses a branch by the platform of the program. Here
it chooses the branch of TPUs.
"""

import jax
import pytest
from testing import tiny

import specsamp
from specsamp.drafting import model_drafter

pytestmark = pytest.mark.extended

_PROMPTS = ['abc', 'a', 'zxyw']
_SAMPLING = specsamp.SamplingParams(
  temperature=[1.0, 0.0, 0.7], top_k=[0, 0, 20]
)


def _generate(max_length, draft_len):
  # Another limit of positions is another program, which is traced again, but
  # computes the same.
  target = tiny.model(64, seed=0, max_length=max_length)
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
def test_padding_tokens_have_no_effect(monkeypatch, draft_len, expected):
  on_cpu = _generate(64, draft_len)
  branches = set()

  def as_on_tpu(*args, default=None, tpu=None, **_):
    branch = tpu or default
    branches.add(getattr(branch, '__name__', ''))
    return branch(*args)

  monkeypatch.setattr(jax.lax, 'platform_dependent', as_on_tpu)
  got = _generate(61, draft_len)
  assert branches >= expected
  assert got.tokens == on_cpu.tokens
  assert got.rounds.tolist() == on_cpu.rounds.tolist()
  assert (
    got.num_accepted_per_pos.tolist() == on_cpu.num_accepted_per_pos.tolist()
  )
