"""The passes of which Chen et al. 2302.01318, section 6, report the times."""

from specsamp.planning import latency
from specsamp.planning.latency import predict
from specsamp.planning.topology import parse
from specsamp.planning.work import Collective, Work

# Layers, width, parameters.
CHINCHILLA_70B = (80, 8192, 69.8e9)
DRAFT_4B = (8, 6144, 4.10e9)
CHINCHILLA_7B = (32, 4096, 7.11e9)
REPORTED_MS = [
  (CHINCHILLA_70B, 'v4:2x2x4', 14.1),
  (DRAFT_4B, 'v4:2x2x4', 1.8),
  (CHINCHILLA_7B, 'v4:2x2x1', 5.0),
]


def work(layers, width, params, chips, tokens) -> Work:
  """Megatron's way, bfloat16, batch size 1, 2,048 positions; the caches are
  keys, values and a table of relative positions."""
  return Work(
    weights=int(2 * params / chips),
    caches=layers * 3 * width * 2048 * 2 // chips,
    flops=2 * params * tokens / chips,
    collectives=(Collective('all-reduce', 2 * width * tokens, 2 * layers + 1),),
  )


def ms(model, name, tokens=1, constants=latency.CONSTANTS) -> float:
  """Predicted milliseconds of a pass on the slice of that name."""
  topology = parse(name)
  return predict(
    work(*model, topology.num_chips, tokens), topology, constants
  ).total
