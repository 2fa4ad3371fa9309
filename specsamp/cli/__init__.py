"""What every launcher shares: flags, help, a folder, mistakes in one line."""

from specsamp.cli.config_files import load_paper
from specsamp.cli.flags import (
  define_code_execution,
  define_config,
  define_flags,
  define_mesh,
  define_required,
)
from specsamp.cli.running import command, run
from specsamp.cli.workdir import make_workdir

__all__ = [
  'command',
  'define_code_execution',
  'define_config',
  'define_flags',
  'define_mesh',
  'define_required',
  'load_paper',
  'make_workdir',
  'run',
]
