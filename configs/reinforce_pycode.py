r"""Steps of policy gradient on the embedded target, with drafted rollouts.

The reward of a rollout is the share of its characters that are letters; of four
rollouts of a prompt those above the mean become more probable (GRPO, Shao et
al. 2402.03300, with one step on each batch). The draft stays as it is while the
policy moves: τ over the steps tells what that costs. In each step the same
rollouts are drawn without a draft too: under Gumbel coupling they are the same.
A minute on 2 CPU cores.

  python launch/reinforce.py --config=configs/reinforce_pycode.py

`--config.drafter=eagle` drafts with the embedded drafter that was trained on
the features of the policy before it moved. `:smoke` has two steps.
"""

import ml_collections

from specsamp.errors import unknown


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the few steps."""
  if arg not in (None, 'smoke'):
    raise ValueError(unknown('argument', arg, ['smoke'], ', or none'))
  smoke = arg == 'smoke'
  return ml_collections.ConfigDict(
    dict(
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target='',
      draft='',
      drafter='',  # what drafts, as in quickstart.py; '' is the draft model
      draft_len=3,  # drafted tokens a round; 0 is no draft
      prompts='code',  # what to complete, as in quickstart.py
      data='../shared/data',  # folder with the published sets of prompts
      num_prompts=2 if smoke else 4,  # of a step
      max_prompt_tokens=8 if smoke else 32,
      max_new_tokens=8 if smoke else 32,  # of a rollout
      group=2 if smoke else 4,  # rollouts of each prompt in a step
      temperature=1.0,  # of the rollouts
      steps=2 if smoke else 8,  # of the optimizer
      learning_rate=1e-4,  # of Adam
      compare=True,  # draw the same rollouts without a draft too
      slots=4 if smoke else 16,  # rollouts decoded at once
      rounds=16,  # of a burst at most
      seed=0,  # rollout i of all steps draws from seed + i
    )
  ).lock()
