"""The flags of every launcher."""

from collections.abc import Callable

from absl import flags
from jax.sharding import Mesh
from ml_collections import config_flags

from specsamp.cli import workdir
from specsamp.errors import UserError
from specsamp.sharding import mesh as meshes

_default_config: list[str | None] = []  # of the launcher, that which is last


class _Required(flags.Flag):
  """A text that must be given.

  Of one that absl marks as required it is told that None had been given.
  """


def define_required(name: str, help: str) -> flags.FlagHolder[str]:
  """A flag that must be given."""
  text = flags.ArgumentParser(), flags.ArgumentSerializer()
  return flags.DEFINE_flag(
    _Required(*text, name, None, f'{help} Must be given.')
  )


def check_required() -> None:
  """Raises `UserError` for a flag that must be given and was not."""
  for name in flags.FLAGS:
    flag = flags.FLAGS[name]
    if isinstance(flag, _Required) and flag.value is None:
      raise UserError(f'--{name}: got none: {flag.help}')


def define_flags(
  workdir_prefix: str | None = None, config: str | None = None
) -> None:
  """The two flags of launchers of experiments, --config and --workdir.

  Args:
    workdir_prefix: a launcher with nothing to resume writes into a new folder
      that begins so if none is named; without a prefix one must be named.
    config: see `define_config`.
  """
  define_config(config)
  folder = 'Folder for everything that is written.'
  if workdir_prefix:
    flags.DEFINE_string(
      'workdir',
      f'{workdir_prefix}{workdir.TIME}',
      f'{folder} If left out, {workdir_prefix}-TIME.',
    )
  else:
    define_required(
      'workdir', f'{folder} A run that was cut off goes on there.'
    )


def define_config(default: str | None = None) -> None:
  """The flag --config, alone: of a launcher that writes nothing.

  Args:
    default: if none is named; without one a config must be named.
  """
  _default_config[:] = [default]
  config_flags.DEFINE_config_file(
    'config',
    None,  # `config_files.complete` puts it on the command line
    'Experiment, FILE or FILE:ARGUMENT; --config.KEY=VALUE changes a value. '
    + (f'If left out, {default}.' if default else 'Must be given.'),
  )


def default_config() -> str | None:
  """The config of a command line without one; None if it must have one."""
  return _default_config[0]


def define_mesh(axis: str) -> Callable[[], Mesh | None]:
  """The flag --mesh of a launcher that computes.

  Args:
    axis: of `mesh.parse`, for a flag that is left out.

  Returns:
    A function that makes the mesh; None on a lone device.
  """
  flag = flags.DEFINE_string(
    'mesh',
    '',
    'Shards of the batch x shards of the models, such as 2x4. If left out, one '
    f'device, or of several processes all on the {axis} axis.',
  )
  return lambda: meshes.parse(flag.value, axis)


def define_code_execution() -> flags.FlagHolder[bool]:
  """The flag --allow_code_execution of launchers that score answers."""
  return flags.DEFINE_bool(
    'allow_code_execution',
    False,
    'Run the programs that models write for HumanEval, each in a subprocess '
    'with limits on time, memory and files. They can read your files and use '
    'the network: use a container for a model that you do not trust.',
  )
