"""Runs of several processes: who there is, who writes, what all agree on."""

import os
import pathlib
import sys
import warnings
from collections.abc import Callable
from typing import Any, TextIO

import jax
from jax.experimental import multihost_utils

from specsamp.errors import UserError

# Of silence, after which a process counts as dead and the others end.
_TIMEOUT_SECONDS = 30

_ADDRESS, _COUNT, _INDEX = (
  'JAX_COORDINATOR_ADDRESS',
  'JAX_NUM_PROCESSES',
  'JAX_PROCESS_ID',
)


def initialize() -> None:
  """Joins the other processes of this run; alone if there are none.

  On Cloud TPU and under Slurm jax finds out by itself who they are. Elsewhere
  the variables JAX_COORDINATOR_ADDRESS (host:port of process 0),
  JAX_NUM_PROCESSES and JAX_PROCESS_ID tell, as `launch/pods/jobset.yaml`
  sets them on Kubernetes. To be called before anything touches a device.

  Raises:
    UserError: only some of the variables are set, or not to numbers.
  """
  timeouts = dict(
    heartbeat_timeout_seconds=_TIMEOUT_SECONDS,
    shutdown_timeout_seconds=_TIMEOUT_SECONDS,
  )
  given = [name for name in (_ADDRESS, _COUNT, _INDEX) if os.environ.get(name)]
  arguments = _from_environment(given) if given else {}
  # It would keep SIGTERM from ending a run, and checkpoint at any step.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    with warnings.catch_warnings():
      # In a container jax asks for a package that finds its siblings.
      warnings.filterwarnings('ignore', message='(?s).*ubernetes')
      jax.distributed.initialize(**arguments, **timeouts)
  except ValueError as error:
    if given or 'coordinator_address' not in str(error):
      raise
    return  # no cluster that jax knows: a lone machine
  print(
    f'process {jax.process_index()} of {jax.process_count()}: '
    f'{jax.local_device_count()} of {jax.device_count()} devices',
    file=sys.stderr,
    flush=True,
  )
  # Connects them now: who comes to it half a minute late is taken for dead.
  wait('begun')


def _from_environment(given) -> dict[str, Any]:
  if len(given) < 3:
    raise UserError(
      f'{_ADDRESS}, {_COUNT} and {_INDEX} go together, got only {given}'
    )
  address = os.environ[_ADDRESS]
  if not address.rpartition(':')[2].isdecimal():
    raise UserError(f'{_ADDRESS}: got {address!r}, expected HOST:PORT')
  values = []
  for name in (_COUNT, _INDEX):
    text = os.environ[name]
    if not text.isdecimal():
      raise UserError(f'{name}: got {text!r}, expected a number')
    values.append(int(text))
  count, index = values
  if index >= count:
    raise UserError(f'{_INDEX} is {index}, expected below {_COUNT} {count}')
  return dict(
    coordinator_address=address,
    num_processes=count,
    process_id=index,
  )


def is_first() -> bool:
  """Whether this is the process that writes reports and shows progress."""
  return jax.process_index() == 0


def first_opens(path: pathlib.Path, mode: str) -> TextIO:
  """The file, opened by the first process; the others write into nothing."""
  return open(path if is_first() else os.devnull, mode)


def first_does(action: Callable[[], None], what: str) -> None:
  """Has the first process do something, such as write what all will read.

  Args:
    action: what to do.
    what: names it in errors.

  Raises:
    UserError: it could not; in every process, so that none is left waiting.
  """
  failed = None
  if is_first():
    try:
      action()
    except OSError as error:
      failed = UserError(f'{what}: {error.strerror}')
    except UserError as error:
      failed = error
  if of_first(int(failed is not None)):
    raise failed or UserError(f'{what}: process 0 failed and tells why')


def of_first(value: Any) -> Any:
  """The numbers of process 0 in all processes, such as times it measured.

  Args:
    value: a number, or arrays and numbers in a tree, of one shape everywhere.
  """
  if jax.process_count() == 1:
    return value
  shared = multihost_utils.broadcast_one_to_all(value)
  return jax.tree.map(lambda was, now: type(was)(now), value, shared)


def wait(name: str) -> None:
  """Returns once every process is here."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
