"""What a plan is for: a slice of TPUs, or GPUs of one or several hosts."""

import dataclasses

from specsamp.errors import UserError, describe_unknown
from specsamp.models import TransformerConfig
from specsamp.planning import gpu, tpu

Topology = tpu.Slice | gpu.Nodes


def parse(name: str) -> Topology:
  """The chips of a name: `tpu.parse` and `gpu.parse` say which there are.

  Raises:
    UserError: a name, a shape or a number that there is not.
  """
  nodes = gpu.parse(name)
  if nodes:
    return nodes
  if name.split(':')[0].split('-')[0] not in tpu.GENERATIONS:
    others = ' with a shape or size, such as v4:2x2x4, v5e-16 or h100:8'
    raise UserError(
      describe_unknown('topology', name, [*tpu.CHIPS, *gpu.GPUS], others)
    )
  return tpu.parse(name)


def as_computed(model: TransformerConfig, where: Topology) -> TransformerConfig:
  """The model in the dtype that `specsamp.load` would give it there.

  That is float16 in place of a bfloat16 that a GPU does not have.
  """
  if model.dtype == 'bfloat16' and not where.chip.has_bfloat16:
    return dataclasses.replace(model, dtype='float16')
  return model
