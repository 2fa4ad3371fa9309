"""An example of policy gradient on rollouts, drawn with or without a draft."""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optax

from specsamp.checkpoints import model_dir
from specsamp.decoding.rollouts import EngineSampler, SamplerOutput
from specsamp.errors import UserError, check_range
from specsamp.evaluation.reporting.report import Table
from specsamp.experiments.config import PairConfig, TaskPrompt
from specsamp.training import run as training
from specsamp.training.policy_gradient import advantages, make_update
from specsamp.training.run_config import RunConfig
from specsamp.utils import schema

_CLIP = 1.0  # global norm of a gradient
_SAVE_EVERY = 10  # steps
_PRINTED = (
  'step', 'reward', 'tau', 'same', 'rollout_seconds', 'seconds_without_draft',
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReinforceConfig(PairConfig):
  """Steps of policy gradient on the target.

  Attributes:
    drafter: '' is the draft model, other drafters are as in a config of decode.
    draft_len: draft tokens in a round; 0 decodes without a draft.
    prompts: prompts of every step, as in a config of decode.
    group: rollouts of each prompt in a step, at least two to compare.
    temperature: temperature of the rollouts.
    steps: steps of the optimizer.
    learning_rate: learning rate of Adam.
    compare: draw the same rollouts without a draft as well, if there is one.
    slots: rollouts that are decoded at once.
    rounds: upper bound on the rounds of a burst.
  """

  num_prompts: int = 4
  max_prompt_tokens: int = 32
  max_new_tokens: int = 32
  drafter: str = ''
  draft_len: int = 3
  prompts: str = 'code'
  group: int = 4
  temperature: float = 1.0
  steps: int = 8
  learning_rate: float = 1e-4
  compare: bool = True
  slots: int = 16
  rounds: int = 16

  def __post_init__(self):
    super().__post_init__()
    check_range(self, 'steps', 'slots', 'rounds', min=1, kind=int)
    check_range(self, 'draft_len', min=0, kind=int)
    check_range(self, 'group', min=2, kind=int)
    check_range(self, 'learning_rate', min=0)
    check_range(self, 'temperature', min=1e-6, max=1e6)


def run(
  values: dict[str, Any], make_workdir: Callable[[], pathlib.Path]
) -> None:
  """Trains, resuming a run of the workdir, and prints the metrics.

  Writes policy/, a folder for `specsamp.load`, and the files of `run.resume`.

  Args:
    values: a `ReinforceConfig` as plain values.
    make_workdir: called when everything is checked; returns the folder.

  Raises:
    UserError: a file or value is invalid.
  """
  config = schema.read(ReinforceConfig, values)
  # Steps are too small for weights of 16 bits. The embedded ones have 32.
  dtype = 'float32' if config.target else ''
  if config.weights:
    raise UserError(
      f'weights: got {config.weights!r}, expected floats: they are trained'
    )
  models = config.load_models(None, dtype)
  target = models.target
  prompts = config.load_prompts(config.prompts, target)
  drafters = [None] if config.compare or not config.draft_len else []
  if config.draft_len:
    drafter = models.drafter(
      config.drafter, config.draft_len, 'deterministic', 'gumbel'
    )
    drafters.insert(0, drafter)
  samplers = [
    EngineSampler(
      target,
      cache_size=config.max_prompt_tokens + config.max_new_tokens,
      slots=config.slots,
      drafter=drafter,
      verifier='gumbel',
      rounds=config.rounds,
      stale=True,  # the policy moves, the drafter does not
    )
    for drafter in drafters
  ]
  optimizer = optax.chain(
    optax.clip_by_global_norm(_CLIP), optax.adam(config.learning_rate)
  )
  update = make_update(target.transformer, optimizer, config.temperature)

  def compile_engines(_):
    for sampler in samplers:
      sampler.engine.compile()

  def advance(step, state):
    params, moments = state
    for sampler in samplers:
      sampler.transformer_state = params
    rollouts, metrics = _draw(samplers, prompts, config, step)
    rewards = np.asarray(list(map(reward, rollouts.text)), np.float32)
    batch = *_padded(rollouts, config), advantages(rewards, config.group)
    params, moments, losses = update(params, moments, *batch)
    return [params, moments], metrics | losses | {'reward': rewards.mean()}

  state = [target.params, optimizer.init(target.params)]
  run_config = RunConfig(
    batch_size=len(prompts) * config.group,
    length=config.max_new_tokens,
    steps=config.steps,
    log_every=1,
    checkpoint_every=_SAVE_EVERY,
  )
  workdir = make_workdir()
  params, _ = training.resume(
    run_config,
    workdir.absolute(),
    begin=lambda: state,
    shapes=state,
    prepare=compile_engines,
    advance=advance,
  )
  model_dir.save(dataclasses.replace(target, params=params), workdir / 'policy')
  lines = training.read_metrics(workdir, 'train')
  rows = [{k: line[k] for k in _PRINTED if k in line} for line in lines]
  print(Table(rows).render('simple'))
  if samplers[0].engine.is_stale:
    print('The drafter was trained for the policy before the first step.')


def _draw(
  samplers: Sequence[EngineSampler],
  prompts: Sequence[TaskPrompt],
  config: ReinforceConfig,
  step: int,
) -> tuple[SamplerOutput, dict[str, float]]:
  """Draws the rollouts of a step by all samplers.

  Returns those of the first sampler, and metrics that compare all of them.
  """
  ends = all(prompt.task.ends for prompt in prompts)
  drawn, seconds = [], []
  for sampler in samplers:
    start = time.perf_counter()
    rollouts = sampler(
      [prompt.tokens for prompt in prompts],
      config.max_new_tokens,
      eos_tokens=None if ends else (),
      temperature=config.temperature,
      seed=config.seed + (step - 1) * len(prompts) * config.group,
      multi_sampling=config.group,
    )
    drawn.append(rollouts)
    seconds.append(time.perf_counter() - start)
  rollouts, *others = drawn
  metrics = {'rollout_seconds': seconds[0], 'tau': rollouts.block_efficiency}
  for plain in others:
    same = map(np.array_equal, rollouts.tokens, plain.tokens)
    metrics['same'] = np.mean(list(same))
    metrics['seconds_without_draft'] = seconds[1]
  return rollouts, metrics


def _padded(
  rollouts: SamplerOutput, config: ReinforceConfig
) -> tuple[np.ndarray, np.ndarray]:
  """Returns tokens, int32 [B, T], and a mask of new tokens, float32 [B, T]."""
  width = config.max_prompt_tokens + config.max_new_tokens
  tokens_bt = np.zeros((len(rollouts.completions), width), np.int32)
  is_new_bt = np.zeros(tokens_bt.shape, np.float32)
  for row, completion in enumerate(rollouts.completions):
    tokens = completion.prompt + completion.tokens
    tokens_bt[row, : len(tokens)] = tokens
    is_new_bt[row, len(completion.prompt) : len(tokens)] = 1
  return tokens_bt, is_new_bt


def reward(text: str) -> float:
  """Returns the share of letters in a rollout."""
  return sum(map(str.isalpha, text)) / max(len(text), 1)
