"""Passes whose times Chen et al. 2302.01318, section 6, report."""

import dataclasses

from specsamp.models import presets
from specsamp.planning import tpu, work
from specsamp.planning.latency import predict
from specsamp.planning.topology import parse

CHINCHILLA_70B = presets.chinchilla_70b()
DRAFT_4B = presets.chinchilla_draft_4b()
CHINCHILLA_7B = presets.chinchilla_7b()
REPORTED_MS = [
  (CHINCHILLA_70B, 'v4:2x2x4', 14.1),
  (DRAFT_4B, 'v4:2x2x4', 1.8),
  (CHINCHILLA_7B, 'v4:2x2x1', 5.0),
]


def ms(config, name, tokens=1, constants=tpu.CONSTANTS) -> float:
  """Returns the predicted milliseconds of a pass on the slice of a name."""
  topology = dataclasses.replace(parse(name), constants=constants)
  model_pass = work.of_pass(
    config, shards=topology.num_chips, tokens=tokens, context=2048
  )
  return predict(model_pass, topology).total
