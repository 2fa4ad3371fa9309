"""An OpenAI-compatible server of a config's models."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from specsamp import verification
from specsamp.decoding.engine import Engine
from specsamp.errors import UserError, check_range
from specsamp.experiments import config as configs
from specsamp.experiments import loading
from specsamp.experiments.method_config import Branching
from specsamp.experiments.trees import token_tree
from specsamp.language_model import LanguageModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
  """Models to serve, and limits of requests.

  Attributes:
    target: folder of the target; '' for the embedded pair's.
    draft: folder of the draft; '' for the embedded pair's.
    name: model name in requests; '' for the name of its folder.
    drafter: kind of drafter, see `loading.Models`; '' for the draft model.
    lookup: options of drafters without a model.
    verifier: name of `specsamp.verification.make`; '' for the drafter's
      default.
    draft_len: draft tokens per round; 0 disables drafting.
    branching: a token tree instead of `draft_len`, see `TokenTree.branching`.
    law: how candidates are chosen, see `model_drafter`; '' for the law that the
      drafter and the verifier need.
    slots: number of completions that are decoded at once.
    rounds: upper bound on the rounds of a burst, after which tokens are sent.
      1 lets the page mark accepted tokens; more cost less in between.
    queue: number of completions that may wait for a slot.
    max_length: upper bound on the tokens of a prompt with its completion, which
      every pass reads; 0 for the target's positions.
    max_new_tokens: upper bound on the tokens of a completion; 0 for the rest of
      `max_length`.
    logprobs: alternatives of a token; -1 disables log-probabilities.
    max_body_bytes: upper bound on the body of a request.
    dtype: dtype that the target computes in; '' for its folder's.
  """

  target: str
  draft: str
  name: str
  drafter: str
  lookup: loading.Lookup
  verifier: str
  draft_len: int
  branching: Branching
  law: str
  slots: int
  rounds: int
  queue: int
  max_length: int
  max_new_tokens: int
  logprobs: int
  max_body_bytes: int
  dtype: str = ''

  def __post_init__(self):
    names = ('slots', 'rounds', 'max_body_bytes')
    check_range(self, *names, least=1, kind=int)
    names = ('draft_len', 'queue', 'max_length', 'max_new_tokens')
    check_range(self, *names, least=0, kind=int)
    check_range(self, 'logprobs', least=-1, kind=int)
    configs.check_dtype(self.dtype)
    if self.verifier:
      verification.make(self.verifier)

  @classmethod
  def read(cls, values: dict[str, Any]) -> 'ServeConfig':
    """Returns the config of plain values."""
    with configs.reading():
      lookup = loading.Lookup(**values.get('lookup', {}))
      branching = tuple(values.get('branching', ()))
      return cls(**values | {'lookup': lookup, 'branching': branching})


@dataclasses.dataclass(frozen=True)
class Serving:
  """A checked server.

  Attributes:
    config: its config.
    target: target model.
    engine: engine that decodes.
    host: address to listen on.
    port: port to listen on, 0 for any free one.
    names: further names of the server, see `hosts.allowed`.
  """

  config: ServeConfig
  target: LanguageModel
  engine: Engine
  host: str
  port: int
  names: Sequence[str]

  def run(self) -> None:
    """Compiles, prints the address, and serves until SIGTERM."""
    from specsamp.serving import app, hosts, server
    from specsamp.serving.detokenize import Vocabulary
    from specsamp.serving.metrics import Metrics
    from specsamp.serving.requests import MAX_CHOICES, Limits
    from specsamp.serving.worker import Worker

    config = self.config
    listener = server.listen(self.host, self.port)  # before it compiles
    self.engine.compile()
    max_length = config.max_length or self.target.config.max_length
    limits = Limits(
      model=config.name or pathlib.Path(config.target).name or configs.EMBEDDED,
      tokenizer=self.target.tokenizer,
      num_tokens=self.target.config.num_tokens,
      max_length=max_length,
      max_new_tokens=config.max_new_tokens or max_length,
      max_choices=min(config.slots + config.queue, MAX_CHOICES),
      logprobs=None if config.logprobs < 0 else config.logprobs,
    )
    metrics = Metrics()
    worker = Worker(
      self.engine,
      Vocabulary(self.target.tokenizer),
      queue=config.queue,
      slots=config.slots,
      rounds=config.rounds,
      metrics=metrics,
    )
    names = hosts.allowed(self.host, self.names)
    served = app.make(worker, limits, metrics, config.max_body_bytes, names)
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
  config = ServeConfig.read(values)
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
  return Serving(config, models.target, engine, host, port, names)
