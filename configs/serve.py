"""An OpenAI-compatible server of the embedded pair, eight texts at once.

Listens at 127.0.0.1:8000 once it has compiled, half a minute; SIGTERM ends it
when the texts that were begun are complete.

  python launch/serve.py --config=configs/serve.py

`:smoke` has two slots and short texts.
"""

import ml_collections

from specsamp.errors import describe_unknown


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest server; left out, the full one."""
  if arg not in (None, 'smoke'):
    raise ValueError(describe_unknown('argument', arg, ['smoke'], ', or none'))
  smoke = arg == 'smoke'
  return ml_collections.ConfigDict(
    dict(
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target='',
      draft='',
      dtype='',  # that the target computes in; '' is what its folder has
      name='',  # what requests call the model; '' is its folder's name
      drafter='',  # what drafts, as in quickstart.py; '' is the draft model
      lookup=dict(n_max=3, n_min=1, datastore='', window=7, draft_length=0),
      verifier='',  # the rule that accepts drafted tokens; '' fits the drafter
      draft_len=4,  # drafted tokens a round; 0 drafts none
      branching=(),  # a token tree in its place, as in quickstart.py
      law='',  # how candidates are chosen; '' fits drafter and verifier
      slots=2 if smoke else 8,  # texts that are decoded at once
      # Of a burst, after which tokens are sent: 1 sends those of each round,
      # and lets the page mark accepted ones; more cost less between them.
      rounds=1,
      queue=4 if smoke else 64,  # texts that may wait; beyond these, status 429
      # Tokens of a prompt with its text, which every pass reads; 0 is the
      # target's positions.
      max_length=64 if smoke else 0,
      max_new_tokens=0,  # of one text, at most; 0 is what max_length leaves
      logprobs=5,  # alternatives of a token; -1 is no log-probabilities
      max_body_bytes=1 << 20,  # of a request
    )
  ).lock()
