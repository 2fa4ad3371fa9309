"""What a user did wrong, as opposed to what this code does wrong."""


class UserError(ValueError):
  """A mistake in the input: one line that names what, got and expected.

  Launchers print the line and exit with code 2; every other exception is a
  bug and keeps its traceback.
  """
