r"""Steps of policy gradient on the embedded target, with drafted rollouts.

The reward is the share of letters in a rollout. Of four rollouts of a prompt
those above the mean become more probable (GRPO, Shao et al. 2402.03300, with
one step on each batch). The draft does not follow the policy, so that τ may
fall. Each step also draws the rollouts without a draft: under Gumbel coupling
they are the same. A minute on 2 CPU cores.

  python launch/reinforce.py --config=configs/reinforce_pycode.py

`--config.drafter=eagle` drafts with the embedded drafter that was trained on
the features of the policy before it moved. `:smoke` has two steps.
"""

from specsamp.errors import check_name
from specsamp.experiments.reinforce import ReinforceConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'reinforce'


def get_config(arg: str = 'full'):
  """Returns the full config, or the smallest one for `smoke`."""
  check_name('argument', arg, ('full', 'smoke'))
  if arg == 'full':
    return config_dict(ReinforceConfig)
  lengths = dict(max_prompt_tokens=8, max_new_tokens=8)
  sizes = dict(num_prompts=2, group=2, steps=2, slots=4)
  return config_dict(ReinforceConfig, **lengths, **sizes)
