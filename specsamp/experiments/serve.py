"""An OpenAI-compatible server of a config's models."""

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

from absl import logging
from jax.sharding import Mesh

from specsamp import verification
from specsamp.decoding.engine import Engine
from specsamp.errors import UserError, check_range
from specsamp.experiments import loading
from specsamp.experiments.config import (
  EMBEDDED,
  ChatTemplateConfig,
  DrafterConfig,
)
from specsamp.experiments.methods import make_tree
from specsamp.utils import schema


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig(ChatTemplateConfig, DrafterConfig):
  """Models to serve, and bounds on their requests.

  A request overrides `chat_template_kwargs` key by key.

  Attributes:
    name: name of the model in requests; '' is the name of its folder.
    slots: completions that are decoded at once.
    rounds: rounds of a burst, after which tokens are sent. After 1 round the
      page can mark accepted tokens; more rounds cost less between bursts.
    queue: completions that may wait for a slot; later requests get status 429.
    max_length: upper bound on the tokens of a prompt with its completion; every
      pass reads this number of cache slots. 0 is the positions of the target.
    max_new_tokens: upper bound on the new tokens of a completion; 0 is the rest
      of max_length.
    logprobs: alternatives of a token that have log-probabilities; -1 computes
      no log-probabilities.
    max_body_bytes: upper bound on the bytes of a request.
    reuse_prefixes: true to prefill only the rest of a prompt that begins like a
      text in a slot, such as the next turn of a chat.
  """

  name: str = ''
  slots: int = 8
  rounds: int = 1
  queue: int = 64
  max_length: int = 0
  max_new_tokens: int = 0
  logprobs: int = 5
  max_body_bytes: int = 1 << 20
  reuse_prefixes: bool = True

  def __post_init__(self):
    names = ('slots', 'rounds', 'max_body_bytes')
    check_range(self, *names, min=1, kind=int)
    names = ('draft_len', 'queue', 'max_length', 'max_new_tokens')
    check_range(self, *names, min=0, kind=int)
    check_range(self, 'logprobs', min=-1, kind=int)
    self.check_chat_template(is_used=True)


def run(
  values: dict[str, Any],
  host: str = '127.0.0.1',
  port: int = 8000,
  mesh: Mesh | None = None,
  names: Sequence[str] = (),
) -> None:
  """Loads the models, prints the address, and serves until SIGTERM.

  Args:
    values: a `ServeConfig` as plain values.
    host: address to listen on.
    port: port to listen on, 0 for any free one.
    mesh: mesh to decode on, None for one device.
    names: further names of the server, see `server.allowed_names`.

  Raises:
    UserError: a value is invalid, an extra is missing, or the port is in use.
  """
  try:
    for package in ('prometheus_client', 'pydantic', 'starlette', 'uvicorn'):
      importlib.import_module(package)
  except ImportError as error:
    raise UserError(
      f"serving needs {error.name}; pip install 'specsamp[serve]'"
    ) from None
  from specsamp.serving import app, server
  from specsamp.serving.requests import MAX_CHOICES, Limits
  from specsamp.serving.worker import Worker

  config = schema.read(ServeConfig, values)
  models = config.load_models(mesh, config.dtype)
  shape = config.draft_len
  if config.branching:
    shape = make_tree(config.branching, (), models.target)
  engine = Engine(
    models.target,
    slots=config.slots,
    drafter=config.make_drafter(models, shape) if shape else None,
    verifier=config.verifier or None,
    max_length=config.max_length or None,
    rounds=config.rounds,
    logprobs=None if config.logprobs < 0 else config.logprobs,
    reuse_prefixes=config.reuse_prefixes,
  )
  if config.verifier and not verification.make(config.verifier).lossless:
    logging.warning('verifier %s is NOT lossless', config.verifier)
  listener = server.listen(host, port)  # before it compiles
  engine.compile()
  limits = Limits(
    model=config.name
    or loading.name_of(config.target or EMBEDDED, config.weights),
    engine=engine,
    max_new_tokens=config.max_new_tokens or engine.max_length,
    max_choices=min(config.slots + config.queue, MAX_CHOICES),
    chat_template_kwargs=config.chat_template_kwargs,
  )
  worker = Worker(engine, config.queue)
  allowed = server.allowed_names(host, names)
  served = app.make(worker, limits, config.max_body_bytes, allowed)
  print(f'{limits.model} at {server.address(listener)}', flush=True)
  server.run(served, worker, listener)
