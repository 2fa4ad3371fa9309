"""An example of policy gradient on rollouts, drawn with or without a draft."""

import dataclasses
import pathlib
import time
from typing import Any

import numpy as np
import optax

from specsamp.checkpoints import model_dir
from specsamp.decoding.rollouts import EngineSampler, SamplerOutput
from specsamp.errors import UserError, check_range
from specsamp.evaluation.reporting.report import Table
from specsamp.experiments import loading
from specsamp.experiments.config import PairConfig, TaskPrompt
from specsamp.training import run
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
    compare: draw the same rollouts without a draft as well.
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
    if self.compare and not self.draft_len:
      raise UserError(
        'compare: got True with draft_len=0, expected False, because there is '
        'no draft to compare with'
      )


@dataclasses.dataclass(frozen=True)
class Reinforce:
  """A checked run.

  Attributes:
    config: of the run.
    models: the target is the policy.
    prompts: of every step.
    sampler: draws rollouts.
    plain: draws the same rollouts without a draft; None if not compared.
  """

  config: ReinforceConfig
  models: loading.Models
  prompts: list[TaskPrompt]
  sampler: EngineSampler
  plain: EngineSampler | None

  def run(self, workdir: pathlib.Path) -> None:
    """Trains, resuming a run of the workdir, and prints the metrics.

    Writes policy/, a folder for `specsamp.load`, and the files of `run.resume`,
    which has the errors.
    """
    config, target = self.config, self.models.target
    samplers = [s for s in (self.sampler, self.plain) if s is not None]
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
      rollouts, metrics = self._draw(step)
      rewards = np.asarray(list(map(reward, rollouts.text)), np.float32)
      batch = *self._padded(rollouts), advantages(rewards, config.group)
      params, moments, losses = update(params, moments, *batch)
      return [params, moments], metrics | losses | {'reward': rewards.mean()}

    state = [target.params, optimizer.init(target.params)]
    run_config = RunConfig(
      batch_size=len(self.prompts) * config.group,
      length=config.max_new_tokens,
      steps=config.steps,
      log_every=1,
      checkpoint_every=_SAVE_EVERY,
    )
    params, _ = run.resume(
      run_config,
      workdir.absolute(),
      begin=lambda: state,
      shapes=state,
      prepare=compile_engines,
      advance=advance,
    )
    policy = dataclasses.replace(target, params=params)
    model_dir.save(policy, workdir / 'policy')
    lines = run.read_metrics(workdir, 'train')
    rows = [{k: line[k] for k in _PRINTED if k in line} for line in lines]
    print(Table(rows).render('simple'))
    if self.sampler.engine.is_stale:
      print('The drafter was trained for the policy before the first step.')

  def _draw(self, step: int) -> tuple[SamplerOutput, dict[str, float]]:
    """Draws the rollouts of a step; the metrics have the seconds it took."""
    config = self.config
    ends = all(prompt.task.ends for prompt in self.prompts)

    def draw(sampler):
      start = time.perf_counter()
      rollouts = sampler(
        [prompt.tokens for prompt in self.prompts],
        config.max_new_tokens,
        eos_tokens=None if ends else (),
        temperature=config.temperature,
        seed=config.seed + (step - 1) * len(self.prompts) * config.group,
        multi_sampling=config.group,
      )
      return rollouts, time.perf_counter() - start

    rollouts, seconds = draw(self.sampler)
    metrics = {'rollout_seconds': seconds, 'tau': rollouts.block_efficiency}
    if self.plain is not None:
      plain, metrics['seconds_without_draft'] = draw(self.plain)
      same = map(np.array_equal, rollouts.tokens, plain.tokens)
      metrics['same'] = np.mean(list(same))
    return rollouts, metrics

  def _padded(self, rollouts: SamplerOutput) -> list[np.ndarray]:
    """Returns tokens, int32 [B, T], and 1 for new ones, float32 [B, T]."""
    width = self.config.max_prompt_tokens + self.config.max_new_tokens
    tokens_bt = np.zeros((len(rollouts.completions), width), np.int32)
    is_new_bt = np.zeros(tokens_bt.shape, np.float32)
    for row, completion in enumerate(rollouts.completions):
      tokens = completion.prompt + completion.tokens
      tokens_bt[row, : len(tokens)] = tokens
      is_new_bt[row, len(completion.prompt) : len(tokens)] = 1
    return [tokens_bt, is_new_bt]


def prepare(values: dict[str, Any]) -> Reinforce:
  """Loads and checks everything that a run needs; writes nothing.

  Args:
    values: a `ReinforceConfig` as plain values.

  Raises:
    UserError: a file or value is invalid.
  """
  config = schema.read(ReinforceConfig, values)
  # Steps are too small for weights of 16 bits. The embedded ones have 32.
  dtype = 'float32' if config.target else ''
  models = loading.load(config.target, config.draft, None, dtype)
  prompts = config.load_prompts(config.prompts, models.target)
  drafter = None
  if config.draft_len:
    drafter = models.drafter(
      config.drafter, config.draft_len, 'deterministic', 'gumbel'
    )

  def sampler(drafter):
    return EngineSampler(
      models.target,
      cache_size=config.max_prompt_tokens + config.max_new_tokens,
      slots=config.slots,
      drafter=drafter,
      verifier='gumbel',
      rounds=config.rounds,
      stale=True,  # the policy moves, the drafter does not
    )

  plain = sampler(None) if config.compare else None
  return Reinforce(config, models, prompts, sampler(drafter), plain)


def reward(text: str) -> float:
  """Returns the share of letters in a rollout."""
  return sum(map(str.isalpha, text)) / max(len(text), 1)
