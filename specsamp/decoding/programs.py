"""Compiled programs of batches. The most recently used programs are kept.

On CPUs a program of a small model takes 48 MB and about 900 memory maps, one of
30 layers 1,100 maps. Linux gives a process 65,530 maps, and the compiler fails
when they are used up.
"""

import collections
import dataclasses
import functools
import gc
import pathlib
import threading
from collections.abc import Hashable

import jax

from specsamp.decoding.loop import Decoder

_MAX_KEPT = 256
_MIN_KEPT = 8  # however scarce memory maps are
_MAPS_SHARE = 0.8  # of memory maps in use, above which they are scarce

_lock = threading.Lock()
_kept: collections.OrderedDict[Hashable, 'Programs'] = collections.OrderedDict()


@dataclasses.dataclass(eq=False)
class Programs:
  """Programs of batches of one kind, which `Request.build` compiles.

  `prefill` maps (inputs, prompts) to a state. `decode` maps (inputs, state,
  rounds) to a state, and consumes its argument. `prefill` is compiled for every
  one of `widths`, those of arrays of prompts.
  """

  prefill: jax.stages.Wrapped
  decode: jax.stages.Wrapped
  widths: set[int] = dataclasses.field(default_factory=set)


def programs_for(decoder: Decoder, capacity: int, shapes: Hashable) -> Programs:
  """Returns the programs of batches of one kind, compiled or not.

  Batches of equal `shapes` run the same programs.
  """
  key = (decoder, capacity, shapes)
  with _lock:
    if key not in _kept:
      while len(_kept) >= _MAX_KEPT:
        _evict()
      # Each pair has its functions: jax drops a compiled program with its
      # function.
      prefill = functools.partial(decoder.prefill, capacity=capacity)
      decode = functools.partial(decoder.decode)
      _kept[key] = Programs(jax.jit(prefill), jax.jit(decode, donate_argnums=1))
    _kept.move_to_end(key)
    return _kept[key]


def make_room() -> None:
  """Evicts programs if there are few memory maps for another one."""
  with _lock:
    while len(_kept) > _MIN_KEPT and _are_maps_scarce():
      _evict()


def _evict() -> None:
  """Drops the least recently used programs."""
  _kept.popitem(last=False)
  gc.collect()


def _are_maps_scarce() -> bool:
  maximum = pathlib.Path('/proc/sys/vm/max_map_count')
  if not maximum.exists():
    return False
  maps = pathlib.Path('/proc/self/maps').read_bytes().count(b'\n')
  return maps > _MAPS_SHARE * int(maximum.read_text())
