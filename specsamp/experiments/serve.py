"""An OpenAI-compatible server of a config's models."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

from jax.sharding import Mesh

from specsamp import verification
from specsamp.decoding.engine import Engine
from specsamp.drafting.draft import Law
from specsamp.errors import UserError, check_range
from specsamp.experiments import config as configs
from specsamp.experiments import loading
from specsamp.experiments.method_config import Branching
from specsamp.experiments.trees import token_tree
from specsamp.models.config import Dtype
from specsamp.utils import schema


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
  """Models to serve, and bounds on their requests.

  Attributes:
    target: folder of the target, or its name at the hub; '' is the embedded
      target.
    draft: folder of the draft, or its name at the hub; '' is the embedded
      draft.
    dtype: dtype that the target computes in; '' is that of its folder.
    name: name of the model in requests; '' is the name of its folder.
    drafter: '' is the draft model, other drafters are as in a config of decode.
    lookup: settings of the drafters that look up.
    verifier: rule that accepts draft tokens, see docs/verifiers.md, or a
      user-defined one, my.module:Name; '' is the default of the drafter.
    draft_len: draft tokens a round; 0 decodes without a draft.
    branching: token tree that replaces the chain of draft_len, as in a config
      of decode; () is no tree.
    law: how candidates are chosen; '' fits the drafter and the verifier.
    slots: texts that are decoded at once.
    rounds: rounds of a burst, after which tokens are sent. After 1 round the
      page can mark accepted tokens; more rounds cost less between bursts.
    queue: texts that may wait for a slot; further requests get status 429.
    max_length: upper bound on the tokens of a prompt with its text, which every
      pass reads; 0 is the positions of the target.
    max_new_tokens: upper bound on the new tokens of a text; 0 is what
      max_length leaves.
    logprobs: alternatives of a token that have log-probabilities; -1 computes
      no log-probabilities.
    max_body_bytes: upper bound on the bytes of a request.
  """

  target: str = ''
  draft: str = ''
  dtype: Literal['', Dtype] = ''
  name: str = ''
  drafter: str = ''
  lookup: loading.Lookup = loading.Lookup()
  verifier: str = ''
  draft_len: int = 4
  branching: Branching = ()
  law: Literal['', Law] = ''
  slots: int = 8
  rounds: int = 1
  queue: int = 64
  max_length: int = 0
  max_new_tokens: int = 0
  logprobs: int = 5
  max_body_bytes: int = 1 << 20

  def __post_init__(self):
    names = ('slots', 'rounds', 'max_body_bytes')
    check_range(self, *names, min=1, kind=int)
    names = ('draft_len', 'queue', 'max_length', 'max_new_tokens')
    check_range(self, *names, min=0, kind=int)
    check_range(self, 'logprobs', min=-1, kind=int)
    if self.verifier:
      verification.make(self.verifier)


@dataclasses.dataclass(frozen=True)
class Serving:
  """A checked server.

  Attributes:
    config: its config.
    engine: engine that decodes.
    host: address to listen on.
    port: port to listen on, 0 for any free one.
    names: further names of the server, see `server.allowed_names`.
  """

  config: ServeConfig
  engine: Engine
  host: str
  port: int
  names: Sequence[str]

  def run(self) -> None:
    """Compiles, prints the address, and serves until SIGTERM."""
    from specsamp.serving import app, server
    from specsamp.serving.requests import MAX_CHOICES, Limits
    from specsamp.serving.worker import Worker

    config = self.config
    listener = server.listen(self.host, self.port)  # before it compiles
    self.engine.compile()
    limits = Limits(
      model=config.name or pathlib.Path(config.target).name or configs.EMBEDDED,
      engine=self.engine,
      max_new_tokens=config.max_new_tokens or self.engine.max_length,
      max_choices=min(config.slots + config.queue, MAX_CHOICES),
    )
    worker = Worker(self.engine, config.queue)
    names = server.allowed_names(self.host, self.names)
    served = app.make(worker, limits, config.max_body_bytes, names)
    print(f'{limits.model} at {server.address(listener)}', flush=True)
    server.run(served, worker, listener)


def prepare(
  values: dict[str, Any],
  host: str = '127.0.0.1',
  port: int = 8000,
  mesh: Mesh | None = None,
  names: Sequence[str] = (),
) -> Serving:
  """Loads and checks the models. Writes nothing.

  Args:
    values: a `ServeConfig` as plain values.
    host: address to listen on.
    port: port to listen on, 0 for any free one.
    mesh: mesh to decode on, None for one device.
    names: further names of the server.

  Raises:
    UserError: a file or value is invalid, or the extra is not installed.
  """
  try:
    import prometheus_client  # noqa: F401
    import pydantic  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
  except ImportError as error:
    raise UserError(
      f"serving needs {error.name}; pip install 'specsamp[serve]'"
    ) from None
  config = schema.read(ServeConfig, values)
  models = loading.load(config.target, config.draft, mesh, config.dtype)
  shape = config.draft_len
  if config.branching:
    shape = token_tree(config.branching, models.target)
  drafter = None
  if shape:
    drafter = models.drafter(
      config.drafter, shape, config.law, config.verifier, config.lookup
    )
  engine = Engine(
    models.target,
    slots=config.slots,
    drafter=drafter,
    verifier=config.verifier or None,
    max_length=config.max_length or None,
    rounds=config.rounds,
    logprobs=None if config.logprobs < 0 else config.logprobs,
  )
  return Serving(config, engine, host, port, names)
