"""Runs of several processes: start-up, choice of the writer, shared values."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import multihost_utils

from specsamp.errors import UserError

# A process that is silent for longer counts as dead, and the others end.
_TIMEOUT_SECONDS = 30

_ADDRESS = 'JAX_COORDINATOR_ADDRESS'
_COUNT = 'JAX_NUM_PROCESSES'
_INDEX = 'JAX_PROCESS_ID'


def initialize() -> None:
  """Joins the other processes of this run, if there are any.

  On Cloud TPU and under Slurm jax finds them itself. Elsewhere the variables
  JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES and
  JAX_PROCESS_ID name them; `launch/pods/jobset.yaml` sets these on Kubernetes.
  Must be called before anything touches a device.

  Raises:
    UserError: only some of the variables are set, or their values are invalid.
  """
  timeouts = dict(
    heartbeat_timeout_seconds=_TIMEOUT_SECONDS,
    shutdown_timeout_seconds=_TIMEOUT_SECONDS,
  )
  names = [name for name in (_ADDRESS, _COUNT, _INDEX) if os.environ.get(name)]
  arguments = _from_environment(names) if names else {}
  # The service would keep SIGTERM from ending a run, which may end at any step.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    with warnings.catch_warnings():
      # In a container jax recommends a package that finds sibling containers.
      warnings.filterwarnings('ignore', message='(?s).*ubernetes')
      jax.distributed.initialize(**arguments, **timeouts)
  except ValueError as error:
    if names or 'coordinator_address' not in str(error):
      raise
    return  # no cluster that jax knows: a single machine
  print(
    f'process {jax.process_index()} of {jax.process_count()}: '
    f'{jax.local_device_count()} of {jax.device_count()} devices',
    file=sys.stderr,
    flush=True,
  )
  # Connects the processes now: one that connects half a minute after the others
  # would count as dead.
  wait('begun')


def _from_environment(names: list[str]) -> dict[str, Any]:
  if len(names) < 3:
    raise UserError(
      f'{_ADDRESS}, {_COUNT} and {_INDEX} go together, got only {names}'
    )
  address, *numbers = (os.environ[name] for name in names)
  if not address.rpartition(':')[2].isdecimal():
    raise UserError(f'{_ADDRESS}: got {address!r}, expected HOST:PORT')
  for name, text in zip((_COUNT, _INDEX), numbers, strict=True):
    if not text.isdecimal():
      raise UserError(f'{name}: got {text!r}, expected a number')
  count, index = map(int, numbers)
  if index >= count:
    raise UserError(f'{_INDEX} is {index}, expected below {_COUNT} {count}')
  return dict(
    coordinator_address=address, num_processes=count, process_id=index
  )


def is_first() -> bool:
  """Returns True in the process that writes reports and shows progress."""
  return jax.process_index() == 0


def first_does(action: Callable[[], None], what: str) -> None:
  """Runs an action in the first process, such as writing a shared file.

  Args:
    action: the function to run.
    what: name of the action in errors.

  Raises:
    UserError: the action failed. Every process raises this, so that none
      waits for the others.
  """
  failure = None
  if is_first():
    try:
      action()
    except OSError as error:
      failure = UserError(f'{what}: {error.strerror}')
    except UserError as error:
      failure = error
  if of_first(int(failure is not None)):
    raise failure or UserError(f'{what}: failed; process 0 reports the reason')


def of_first(value: Any) -> Any:
  """Returns the value of process 0 in all processes, such as measured times.

  The value is a pytree of arrays and numbers, of equal shapes everywhere.
  """
  if jax.process_count() == 1:
    return value
  shared = multihost_utils.broadcast_one_to_all(value)
  return jax.tree.map(lambda old, new: type(old)(new), value, shared)


def wait(name: str) -> None:
  """Returns once every process has called it with this name."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
