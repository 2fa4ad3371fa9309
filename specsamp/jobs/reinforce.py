"""Policy gradient on rollouts that are drafted, and on none that are not.

GRPO (Shao et al. 2402.03300) with one step on each batch, so that no ratio of
policies is left of it: advantages are rewards over the mean of their group, in
its standard deviations. Nothing of it knows that there is a draft.
"""

import dataclasses
import json
import pathlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from specsamp import compilation_cache, files, progress
from specsamp.decoding.rollouts import EngineSampler, SamplerOutput
from specsamp.errors import check_range
from specsamp.evaluation.reporting import plots, report, tables
from specsamp.jobs import loading
from specsamp.jobs.config import PairConfig, reading
from specsamp.models import Transformer
from specsamp.training.objectives import language_model as losses

_CLIP = 1.0  # global norm of a gradient


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReinforceConfig(PairConfig):
  """Steps of policy gradient on the target, rollouts at temperature 1.

  Attributes:
    drafter: what drafts, see `loading.Models`; '' is the draft model.
    draft_len: drafted tokens a round.
    prompts: see `tasks.load`.
    group: rollouts of each prompt in a step, at least two to compare.
    steps: of the optimizer.
    learning_rate: of Adam.
    slots: rollouts that are decoded at once.
    rounds: of a burst at most.
  """

  drafter: str
  draft_len: int
  prompts: str
  group: int
  steps: int
  learning_rate: float
  slots: int
  rounds: int

  def __post_init__(self):
    super().__post_init__()
    names = ('draft_len', 'steps', 'slots', 'rounds')
    check_range(self, *names, least=1, kind=int)
    check_range(self, 'group', least=2, kind=int)
    check_range(self, 'learning_rate', least=0)
    rollouts = self.steps * self.num_prompts * self.group
    check_range(self, 'seed', least=0, most=2**31 - 1 - rollouts, kind=int)


class Step(NamedTuple):
  """One step of the optimizer.

  Attributes:
    reward: mean of the rollouts it was made on.
    tau: tokens a round of these, τ.
    same: how many of them are the same without a draft.
    rollouts: how many there are.
    logprob_gap: the largest difference between a token's log-probability from
      its rollout and from the trainer's pass.
    seconds: that the rollouts took.
    plain_seconds: without a draft.
    compiled: programs that were compiled in it for either.
  """

  reward: float
  tau: float
  same: int
  rollouts: int
  logprob_gap: float
  seconds: float
  plain_seconds: float
  compiled: int


class Reinforce(NamedTuple):
  """A checked run.

  Attributes:
    config: what was asked for.
    models: the policy is the target.
    prompts: tokens of each.
    drafted: draws rollouts.
    plain: likewise, without a draft.
  """

  config: ReinforceConfig
  models: loading.Models
  prompts: list[list[int]]
  drafted: EngineSampler
  plain: EngineSampler

  def run(self, workdir: pathlib.Path) -> None:
    """Writes metrics.jsonl, summary.json, report.md and steps.png there."""
    config = self.config
    for sampler in (self.drafted, self.plain):
      sampler.engine.compile()
    params = self.models.target.params
    optimizer = optax.chain(
      optax.clip_by_global_norm(_CLIP), optax.adam(config.learning_rate)
    )
    update = make_update(self.models.target.transformer, optimizer)
    moments = optimizer.init(params)
    steps = []
    with (workdir / 'metrics.jsonl').open('w') as file:
      for i in progress.bar('training', range(config.steps), unit='step'):
        with compilation_cache.compilations() as compiled:
          found, seconds = self._rollouts(self.drafted, i)
          plain, plain_seconds = self._rollouts(self.plain, i)
        rewards = np.asarray([reward(text) for text in found.text], np.float32)
        params, moments, logprobs = update(
          params, moments, *self._batch(found, rewards)
        )
        steps.append(
          Step(
            reward=float(rewards.mean()),
            tau=found.block_efficiency,
            same=sum(map(np.array_equal, found.tokens, plain.tokens)),
            rollouts=len(rewards),
            logprob_gap=_gap(found, np.asarray(logprobs)),
            seconds=seconds,
            plain_seconds=plain_seconds,
            compiled=len(compiled),
          )
        )
        file.write(json.dumps(steps[-1]._asdict()) + '\n')
        file.flush()
        for sampler in (self.drafted, self.plain):
          sampler.transformer_state = params
    _write(workdir, steps, self.drafted.engine.is_stale)

  def _rollouts(self, sampler, step: int) -> tuple[SamplerOutput, float]:
    """Those of a step, and the seconds they took."""
    config = self.config
    began = time.perf_counter()
    found = sampler(
      self.prompts,
      config.max_new_tokens,
      temperature=1.0,
      seed=config.seed + step * len(self.prompts) * config.group,
      multi_sampling=config.group,
      return_logprobs=True,
    )
    return found, time.perf_counter() - began

  def _batch(self, found: SamplerOutput, rewards):
    """What `update` takes: of each rollout a row."""
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
  models = loading.load(config.target, config.draft, None)
  prompts = config.load_prompts(config.prompts, models.target)
  drafter = models.drafter(
    config.drafter, config.draft_len, 'deterministic', coupled=True
  )
  drafted, plain = (
    EngineSampler(
      models.target,
      cache_size=config.max_prompt_tokens + config.max_new_tokens,
      slots=config.slots,
      drafter=each,
      verifier='gumbel',
      rounds=config.rounds,
      stale=True,  # the policy moves, the drafter does not
    )
    for each in (drafter, None)
  )
  return Reinforce(config, models, prompts, drafted, plain)


def reward(text: str) -> float:
  """The share of its characters that are letters."""
  return sum(map(str.isalpha, text)) / max(len(text), 1)


def advantages(rewards, group: int):
  """Of each rollout, those of a prompt in a row: float32 [B].

  Args:
    rewards: float32 [B].
    group: rollouts of a prompt.
  """
  by_prompt = rewards.reshape(-1, group)
  centred = by_prompt - by_prompt.mean(axis=1, keepdims=True)
  spread = by_prompt.std(axis=1, keepdims=True)
  # Of equal rewards nothing is to be learnt.
  return (centred / np.maximum(spread, np.float32(1e-6))).reshape(-1)


def make_update(
  transformer: Transformer, optimizer: optax.GradientTransformation
):
  """Compiled: a step on rollouts.

  Returns:
    (params, moments, tokens [B, T], is_new [B, T], advantages [B]) -> params,
    moments, and the log-probabilities [B, T] of the tokens before the step, of
    which the first is none.
  """

  def loss(params, tokens_bt, is_new_bt, advantage_b):
    logits = transformer.apply({'params': params}, tokens_bt).logits
    logprobs_bt = -losses.next_tokens(logits[:, :-1], tokens_bt[:, 1:])
    logprobs_bt = jnp.pad(logprobs_bt, ((0, 0), (1, 0)))
    gain_bt = advantage_b[:, None] * logprobs_bt * is_new_bt
    return -gain_bt.sum() / is_new_bt.sum(), logprobs_bt

  # Nothing is donated: what rollouts are drawn with are these parameters.
  @jax.jit
  def update(params, moments, *batch):
    gradients, logprobs = jax.grad(loss, has_aux=True)(params, *batch)
    updates, moments = optimizer.update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments, logprobs

  return update


def _gap(found: SamplerOutput, logprobs_bt) -> float:
  return max(
    float(np.abs(own - row[start : start + len(own)]).max())
    for own, row, start in zip(
      found.logprobs, logprobs_bt, found.prompt_lengths, strict=True
    )
  )


def _write(workdir: pathlib.Path, steps: list[Step], is_stale: bool) -> None:
  plots.curves(
    {
      'block efficiency τ': {'': [step.tau for step in steps]},
      'mean reward': {'': [step.reward for step in steps]},
      'seconds of the rollouts': {
        'with a draft': [step.seconds for step in steps],
        'without': [step.plain_seconds for step in steps],
      },
    },
    'step',
    workdir / 'steps.png',
  )
  same = sum(step.same for step in steps)
  count = sum(step.rollouts for step in steps)
  compiled = sum(step.compiled for step in steps)
  gap = max(step.logprob_gap for step in steps)
  note = (
    f'{tables.count(count, "rollout")} in {tables.count(len(steps), "step")}: '
    f'{same} the same with and without a draft, '
    f'{tables.count(compiled, "program")} compiled for them since the warm-up, '
    f'log-probabilities within {gap:.1e} of those of the trainer.'
  )
  if is_stale:
    note += ' The drafter was trained for the policy before it moved.'
  cells = [
    {
      'step': i + 1,
      'reward': step.reward,
      'τ': step.tau,
      'same': f'{step.same} of {step.rollouts}',
      'rollouts s': step.seconds,
      'without a draft s': step.plain_seconds,
    }
    for i, step in enumerate(steps)
  ]
  summary = {
    'steps': [step._asdict() for step in steps],
    'same': same,
    'rollouts': count,
    'compiled': compiled,
    'is_stale': is_stale,
    'device': report.device(),
    'versions': report.versions(),
  }
  files.replace_json(workdir / 'summary.json', summary)
  table = lambda style: tables.render(cells, style)
  files.replace(
    workdir / 'report.md',
    f'# Policy gradient with drafted rollouts\n\n{table("github")}\n\n{note}'
    f'\n\n![steps](steps.png)\n\nOn {report.device()}.\n',
  )
  print(f'{table("simple")}\n\n{note}\n\nReport: {workdir / "report.md"}')
