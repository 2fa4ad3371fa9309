"""Policy gradient on rollouts, drafted or not.

Nothing of the gradient knows whether there is a draft.
"""

import dataclasses
import functools
import pathlib
import time
from typing import Any, NamedTuple

import numpy as np
import optax

from specsamp.checkpoints import model_dir
from specsamp.decoding.rollouts import EngineSampler, SamplerOutput
from specsamp.errors import UserError, check_name, check_range
from specsamp.experiments import loading
from specsamp.experiments.config import Asked, PairConfig, reading
from specsamp.experiments.reinforce_steps import Metrics, Step, write_report
from specsamp.training import run
from specsamp.training.policy_gradient import advantages, make_update
from specsamp.utils import compilation_cache, progress

_CLIP = 1.0  # global norm of a gradient
_SAVE_EVERY = 10  # steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReinforceConfig(PairConfig):
  """Steps of policy gradient on the target.

  Attributes:
    drafter: what drafts, see `loading.Models`; '' is the draft model.
    draft_len: drafted tokens a round; with 0 there is no draft.
    prompts: see `tasks.load`.
    reward: a score of these, such as 'valid Python'; '' is the share of letters
      in a rollout.
    step_prompts: prompts of a step; all take turns.
    group: rollouts of each prompt in a step, at least two to compare.
    temperature: of the rollouts.
    steps: of the optimizer.
    learning_rate: of Adam.
    kl: weight of the divergence from the policy it began as, see `make_update`.
    compare: draw the same rollouts without a draft too.
    slots: rollouts that are decoded at once.
    rounds: of a burst at most.
  """

  drafter: str
  draft_len: int
  prompts: str
  reward: str
  step_prompts: int
  group: int
  temperature: float
  steps: int
  learning_rate: float
  kl: float
  compare: bool
  slots: int
  rounds: int

  def __post_init__(self):
    super().__post_init__()
    check_range(self, 'steps', 'slots', 'rounds', min=1, kind=int)
    check_range(self, 'draft_len', min=0, kind=int)
    if self.compare and not self.draft_len:
      raise UserError(
        'compare: got True with draft_len=0, expected False: there is no draft '
        'to compare with'
      )
    check_range(self, 'group', min=2, kind=int)
    check_range(self, 'learning_rate', 'kl', min=0)
    check_range(self, 'temperature', min=1e-6, max=1e6)
    check_range(self, 'step_prompts', min=1, max=self.num_prompts, kind=int)
    of_step = self.step_prompts * self.group
    check_range(self, 'steps', min=1, max=(2**31 - 1) // of_step, kind=int)
    rollouts = self.steps * of_step
    check_range(self, 'seed', min=0, max=2**31 - 1 - rollouts, kind=int)


class Reinforce(NamedTuple):
  """A checked run.

  Attributes:
    config: what was asked for.
    models: the policy is the target.
    prompts: take turns.
    sampler: draws rollouts.
    plain: likewise, without a draft, to compare with; or None.
  """

  config: ReinforceConfig
  models: loading.Models
  prompts: list[Asked]
  sampler: EngineSampler
  plain: EngineSampler | None

  def run(self, workdir: pathlib.Path) -> None:
    """Trains, or goes on where a run in this workdir was cut off.

    Writes metrics.jsonl, summary.json, report.md, steps.png, checkpoints/, and
    every few steps policy/, a folder for `specsamp.load`.

    Raises:
      UserError: checkpoints or metrics cannot be read.
      FloatingPointError: the policy is no longer finite.
    """
    config, target = self.config, self.models.target
    samplers = [each for each in (self.sampler, self.plain) if each]
    for sampler in samplers:
      sampler.engine.compile()
    optimizer = optax.chain(
      optax.clip_by_global_norm(_CLIP), optax.adam(config.learning_rate)
    )
    update = make_update(
      target.transformer,
      optimizer,
      target.params,
      temperature=config.temperature,
      kl=config.kl,
      rows=config.group,
    )

    def move(params):
      for sampler in samplers:
        sampler.transformer_state = params

    state = [target.params, optimizer.init(target.params)]
    folder = workdir.absolute() / 'checkpoints'
    with run.checkpoints(folder, _SAVE_EVERY) as manager:
      begun = manager.latest_step() or 0
      if begun:
        state = run.restore(manager, state)
        move(state[0])
      metrics = Metrics(workdir / 'metrics.jsonl', begun)
      for number in progress.bar(
        'training',
        range(begun + 1, config.steps + 1),
        initial=begun,
        total=config.steps,
        unit='step',
      ):
        step, found, rewards = self._rollouts(number)
        *state, logprobs = update(*state, *self._batch(found, rewards))
        move(state[0])
        metrics.add(step._replace(logprob_gap=_gap(found, logprobs)))
        if manager.should_save(number) or number == config.steps:
          if not run.is_finite(state):
            raise FloatingPointError(
              f'step {number}: the update left a state that is not finite'
            )
          policy = dataclasses.replace(target, params=state[0])
          model_dir.save(policy, workdir / 'policy')
          run.save(manager, number, state, force=True)
    write_report(workdir, metrics.steps, self.sampler.engine.is_stale)

  def _rollouts(self, number: int) -> tuple[Step, SamplerOutput, np.ndarray]:
    """Those of a step and their rewards, float32 [B]."""
    config = self.config
    first = (number - 1) * config.step_prompts
    asked = [
      self.prompts[(first + i) % len(self.prompts)]
      for i in range(config.step_prompts)
    ]
    with compilation_cache.compilations() as compiled:
      draw = functools.partial(self._draw, asked, first * config.group)
      found, seconds = draw(self.sampler)
      plain, plain_seconds = draw(self.plain) if self.plain else (None, None)
    rewards = np.asarray(
      [
        reward(config.reward, asked[i // config.group], text)
        for i, text in enumerate(found.text)
      ],
      np.float32,
    )
    step = Step(
      number=number,
      reward=float(rewards.mean()),
      tau=found.block_efficiency if config.draft_len else None,
      same=plain and sum(map(np.array_equal, found.tokens, plain.tokens)),
      rollouts=len(rewards),
      logprob_gap=0.0,  # known behind the trainer's pass
      seconds=seconds,
      plain_seconds=plain_seconds,
      compiled=len(compiled),
    )
    return step, found, rewards

  def _draw(
    self, asked: list[Asked], first: int, sampler: EngineSampler
  ) -> tuple[SamplerOutput, float]:
    """Rollouts of these prompts, `first` behind all before, and seconds."""
    config = self.config
    tasks = [each.task for each in asked]
    began = time.perf_counter()
    found = sampler(
      [each.tokens for each in asked],
      max(task.new_tokens(config.max_new_tokens) for task in tasks),
      # As they are evaluated: where texts have no end of their own none ends.
      eos_tokens=None if all(task.ends for task in tasks) else (),
      temperature=config.temperature,
      seed=config.seed + first,
      multi_sampling=config.group,
      return_logprobs=True,
    )
    return found, time.perf_counter() - began

  def _batch(self, found: SamplerOutput, rewards):
    """What an update takes: of each rollout a row."""
    width = self.config.max_prompt_tokens + self.config.max_new_tokens
    tokens_bt = np.zeros((len(rewards), width), np.int32)
    is_new_bt = np.zeros((len(rewards), width), np.float32)
    for i, each in enumerate(found.completions):
      text, start = each.prompt + each.tokens, len(each.prompt)
      tokens_bt[i, : len(text)] = text
      is_new_bt[i, start : len(text)] = 1
    return tokens_bt, is_new_bt, advantages(rewards, self.config.group)


def prepare(values: dict[str, Any]) -> Reinforce:
  """Loads and checks all that a run needs; writes nothing.

  Args:
    values: a `ReinforceConfig` as plain values.

  Raises:
    UserError: a file or value that does not fit.
  """
  with reading():
    config = ReinforceConfig(**values)
  # Steps are too small for weights of 16 bits; the embedded ones have 32.
  dtype = 'float32' if config.target else ''
  models = loading.load(config.target, config.draft, None, dtype)
  prompts = config.load_prompts(config.prompts, models.target)
  _check_reward(config.reward, prompts)
  drafter = None
  if config.draft_len:
    drafter = models.drafter(
      config.drafter, config.draft_len, 'deterministic', 'gumbel'
    )
  sampler = lambda drafter: EngineSampler(
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


def reward(name: str, asked: Asked, text: str) -> float:
  """What a rollout is paid: a score, or with '' the share of letters in it.

  Raises:
    UserError: the answer got no number of this name.
  """
  if not name:
    return sum(map(str.isalpha, text)) / max(len(text), 1)
  found = asked.task.scored(asked.prompt, text).get(name)
  if not isinstance(found, float):
    raise UserError(
      f'reward: got {found!r} for {name!r} of an answer to '
      f'{asked.prompt.name}, expected a number'
    )
  return found


def _check_reward(name: str, prompts: list[Asked]) -> None:
  """Raises `UserError` where a task has no score of this name."""
  if not name:
    return
  firsts = {each.task.name: each for each in reversed(prompts)}.values()
  for task, prompt, _ in firsts:
    scores = {}
    if task.score and not task.runs_answers:  # nothing has allowed to run any
      scores = task.scored(prompt, prompt.reference)
    names = [key for key, value in scores.items() if isinstance(value, float)]
    if not names:
      why = 'answers would be run' if task.runs_answers else 'it has no score'
      raise UserError(
        f'reward: got {name!r}, expected none for {task.name}: {why}'
      )
    check_name('reward', name, names, f', or none, for {task.name}')


def _gap(found: SamplerOutput, logprobs_bt: np.ndarray) -> float:
  """Of those that the trainer has; 0 if it has none."""
  gaps = [
    np.abs(own - row[start : start + len(own)]).max()
    for own, row, start in zip(
      found.logprobs, logprobs_bt, found.prompt_lengths, strict=True
    )
  ]
  return float(np.nanmax([*gaps, 0.0]))
