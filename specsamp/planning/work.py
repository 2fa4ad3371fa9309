"""What a pass takes of one chip: bytes, arithmetic, messages."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Collective:
  """Messages of one kind and size.

  Attributes:
    kind: as XLA names it, such as all-reduce.
    num_bytes: of one chip's result.
    count: how many of them.
  """

  kind: str
  num_bytes: int
  count: int


@dataclasses.dataclass(frozen=True)
class Work:
  """One pass of one model, on one of its chips.

  Attributes:
    weights: bytes of them that are read.
    caches: bytes of them that are read.
    flops: multiplications and additions.
    collectives: one after the other.
  """

  weights: int
  caches: int
  flops: float
  collectives: tuple[Collective, ...]


@dataclasses.dataclass(frozen=True)
class Part:
  """A compiled program, on one of its chips.

  Attributes:
    name: such as `draft step`.
    weights: bytes of them.
    caches: bytes of them.
    temporaries: bytes of what the program needs while it runs.
    other: bytes of its other inputs and outputs.
    collectives: all that it runs; those of a loop's body once.
    num_layers: of the models that it runs.
    seconds: it took to compile.
  """

  name: str
  weights: int
  caches: int
  temporaries: int
  other: int
  collectives: tuple[Collective, ...]
  num_layers: int
  seconds: float

  @property
  def total(self) -> int:
    """Bytes in all."""
    return self.weights + self.caches + self.temporaries + self.other
