"""Chips to plan for: a slice of TPUs, or GPUs of one or several hosts."""

import dataclasses

from specsamp.errors import UserError, describe_unknown
from specsamp.models import TransformerConfig
from specsamp.planning import gpu, tpu

Topology = tpu.Slice | gpu.Nodes


def parse(name: str) -> Topology:
  """Returns the chips of a name. See `tpu.parse` and `gpu.parse` for the forms.

  Raises:
    UserError: the name, its shape or its size is unknown.
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


def as_computed(
  model: TransformerConfig, topology: Topology
) -> TransformerConfig:
  """Returns the model in the dtype that `specsamp.load` chooses on such chips.

  A GPU without bfloat16 computes in float16 instead.
  """
  if model.dtype == 'bfloat16' and not topology.chip.has_bfloat16:
    return dataclasses.replace(model, dtype='float16')
  return model
