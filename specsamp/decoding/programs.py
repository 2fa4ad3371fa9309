"""The compiled programs, of which the least recently used are let go.

A program of a small model takes about 900 memory maps, of which Linux gives a
process 65,530, and 48 MB. A service that decodes ever other shapes would have
the compiler die of the one that is too many.
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

# Pairs of programs that are kept at most, and at least.
_MOST, _LEAST = 256, 8
_MAPS = pathlib.Path('/proc/self/maps')
_MAX_MAPS = pathlib.Path('/proc/sys/vm/max_map_count')
# The share of them from which on the oldest programs are let go: the others are
# for what is compiled beside these.
_SHARE = 0.8

_lock = threading.Lock()  # of what follows
_kept: collections.OrderedDict[Hashable, 'Programs'] = collections.OrderedDict()


@dataclasses.dataclass(eq=False)
class Programs:
  """What a batch runs.

  Attributes:
    prefill: `Decoder.prefill` of (inputs, prompts).
    decode: `Decoder.decode` of (inputs, state, rounds); consumes the state.
    is_compiled: True once `Request.build` has compiled both.
  """

  prefill: jax.stages.Wrapped
  decode: jax.stages.Wrapped
  is_compiled: bool = False


def of(decoder: Decoder, capacity: int, shapes: Hashable) -> Programs:
  """The programs of batches of one kind, compiled by `Request.build`.

  Args:
    decoder: what they are compiled for.
    capacity: slots of the caches.
    shapes: equal for batches that run the same programs.
  """
  key = (decoder, capacity, shapes)
  with _lock:
    if key not in _kept:
      _make_room()
      _kept[key] = _compiled(decoder, capacity)
    _kept.move_to_end(key)
    return _kept[key]


def _compiled(decoder: Decoder, capacity: int) -> Programs:
  # Functions of their own: what jax keeps of a program goes when they go.
  prefill = functools.partial(decoder.prefill, capacity=capacity)
  decode = functools.partial(decoder.decode)
  return Programs(jax.jit(prefill), jax.jit(decode, donate_argnums=1))


def are_compiled(decoder: Decoder, capacity: int, shapes: Hashable) -> bool:
  """Returns True if `of` would return programs that are compiled."""
  kept = _kept.get((decoder, capacity, shapes))
  return kept is not None and kept.is_compiled


def _make_room() -> None:
  """Lets go of the programs that were not used for longest, if need be."""
  while len(_kept) >= _MOST or (len(_kept) >= _LEAST and _is_full()):
    _kept.popitem(last=False)
    gc.collect()


def _is_full() -> bool:
  """Whether this process has nearly as many memory maps as it may have."""
  if not _MAX_MAPS.exists():
    return False
  most = int(_MAX_MAPS.read_text())
  return _MAPS.read_bytes().count(b'\n') > _SHARE * most
