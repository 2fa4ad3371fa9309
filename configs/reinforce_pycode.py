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

  python launch/reinforce.py --config=configs/reinforce_pycode.py:valid \
    --workdir=runs/valid
  python launch/evaluate.py --config=configs/completions.py \
    --config.target=runs/valid/policy --workdir=runs/valid_completions

teaches it to write valid code: the reward is whether a function of the files
that it was trained on comes to something that Python can read, at temperature
0.8. 34 minutes, without a draft, which so many rollouts at once would only
slow.
"""

import ml_collections

from specsamp.errors import unknown


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: valid, smoke for the smallest run; left out, the few steps."""
  if arg not in (None, 'valid', 'smoke'):
    names = ['valid', 'smoke']
    raise ValueError(unknown('argument', arg, names, ', or none'))
  smoke, valid = arg == 'smoke', arg == 'valid'
  return ml_collections.ConfigDict(
    dict(
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target='',
      draft='',
      drafter='',  # what drafts, as in quickstart.py; '' is the draft model
      draft_len=0 if valid else 3,  # drafted tokens a round; 0 is no draft
      # What to complete, as in quickstart.py.
      prompts='training_code' if valid else 'code',
      reward='valid Python' if valid else '',  # a score of these; '' is letters
      data='../shared/data',  # folder with the published sets of prompts
      num_prompts=1600 if valid else 2 if smoke else 4,
      step_prompts=16 if valid else 2 if smoke else 4,  # they take turns
      max_prompt_tokens=128 if valid else 8 if smoke else 32,
      max_new_tokens=160 if valid else 8 if smoke else 32,  # of a rollout
      group=2 if smoke else 4,  # rollouts of each prompt in a step
      temperature=0.8 if valid else 1.0,  # of the rollouts
      steps=100 if valid else 2 if smoke else 8,  # of the optimizer
      learning_rate=1e-4,  # of Adam
      kl=0.1 if valid else 0.0,  # weight of the divergence from the start
      compare=not valid,  # draw the same rollouts without a draft too
      slots=64 if valid else 4 if smoke else 16,  # rollouts decoded at once
      rounds=16,  # of a burst at most
      seed=0,  # rollout i of all steps draws from seed + i
    )
  ).lock()
