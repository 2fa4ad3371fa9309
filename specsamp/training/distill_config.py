"""What a drafter is trained with."""

import dataclasses
from typing import Any, get_args

from specsamp.drafting import trained as kinds
from specsamp.errors import UserError, check_name, check_range, check_scalars
from specsamp.sampling.transforms import SamplingParams
from specsamp.training import run_config
from specsamp.training.objectives import acceptance
from specsamp.training.objectives.batch import Positions, Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig(run_config.RunConfig):
  """What fixes a run: it ends with the same weights.

  Attributes:
    target: folder of the target; '' is the embedded pair's.
    kind: of the drafter, one of `drafting.trained.KINDS`.
    ahead: tokens that it drafts in a round: heads, or masks and one; EAGLE
      drafts as many as it is asked for, and so does EAGLE-3, which is trained
      to draft so many.
    draft_vocab: tokens that EAGLE-3 can draft, the most frequent ones of what
      it is trained on; 0 is all.
    num_layers: of EAGLE, EAGLE-3, DFlash or a parallel drafter. Most papers
      have one; more pay where a round is one pass and not a pass a token, and
      where masks see what those before them made of the layer below.
    init: folder of a drafter to begin with, EAGLE's layer for a parallel one;
      layers that it lacks begin as the identity, and what else it lacks at
      random. '' begins at random.
    corpus: a folder of text, or '' for the standard library of this Python.
    pattern: the corpus' files, a glob relative to its folder.
    num_continuations: how many sequences to train on that the target wrote
      (self-distillation); 0 trains on the text.
    prompt_length: tokens of text that each of them begins with.
    temperatures: at which the target writes, as many sequences at each; 0 is
      greedy. What a drafter has never seen it drafts badly: a text at
      temperature 1 is none that the target writes greedily.
    continuation_batch: sequences that it writes at once.
    continuations: folder for what it writes, for several runs to share, one
      after the other: t0/train, t0/held_out, t1/train, .. for temperatures 0
      and 1. '' is in the workdir.
    features: folder for the target's features, for several runs to share, one
      after the other; '' computes them in every step. Of a drafter that reads
      several layers they lie beside those of the others, and are as many times
      as large.
    groups: positions of a sequence whose heads, masks, blocks or steps are
      trained in a step, drawn anew each time; 0 is all of them. Of a sequence
      that the target wrote none in its prompt: the text behind those is not the
      target's.
    retention: how many of the positions that have mask or step j in a step
      have the next one too.
    loss: of the draft's distribution, see `acceptance.per_position`. As
      published text for Medusa, Hydra and Medusa's ParallelSpec, and kl for
      EAGLE and its ParallelSpec.
    eta: of lk_lambda: how soon it goes over from KL to TV as a position gets
      better; 3 is the usual one.
    position_weights: how the tokens of a draft weigh: by `decay`, or each as
      much as the expected length of a draft depends on it (expected_length).
      For EAGLE, which learns a token ahead, that is its acceptance alone.
    decay: of a head's, mask's or step's weight with its distance; Medusa's, its
      ParallelSpec's and EAGLE-3's is 0.8, EAGLE's ParallelSpec has 1, DFlash
      exp(-1 / 4) for blocks of 8 and exp(-1 / 7) for blocks of 16.
    noise: largest of the uniform noise on features that a drafter reads
      (EAGLE's).
    cross_entropy_weight: of `loss` beside the regression (EAGLE's).
    storage: of the finished drafter's matrices, float32 or int8.
  """

  kind: str
  target: str = ''
  ahead: int = 5
  draft_vocab: int = 0
  num_layers: int = 1
  init: str = ''
  corpus: str = ''
  pattern: str = '**/*.py'
  num_continuations: int = 0
  prompt_length: int = 128
  temperatures: tuple[float, ...] = (0.0,)
  continuation_batch: int = 32
  continuations: str = ''
  features: str = ''
  groups: int = 0
  retention: float = 1.0
  loss: acceptance.Loss = 'kl'
  eta: float = 3.0
  position_weights: Positions = 'decay'
  decay: float = 0.8
  noise: float = 0.1
  cross_entropy_weight: float = 0.1
  storage: run_config.Storage = 'float32'

  def __post_init__(self):
    super().__post_init__()
    check_name('kind', self.kind, kinds.KINDS)
    check_name('storage', self.storage, get_args(run_config.Storage))
    check_range(
      self, 'ahead', 'prompt_length', 'continuation_batch', min=1, kind=int
    )
    check_range(self, 'num_layers', min=1, max=64, kind=int)
    if self.num_layers > 1 and not kinds.KINDS[self.kind].has_layers:
      raise UserError(
        f'num_layers: {self.kind} has none, got {self.num_layers}'
      )
    if self.draft_vocab and 'draft_vocab' not in kinds.KINDS[self.kind].fields:
      raise UserError(
        f'draft_vocab: {self.kind} drafts all tokens, got {self.draft_vocab}'
      )
    check_name('loss', self.loss, get_args(acceptance.Loss))
    check_name('position_weights', self.position_weights, get_args(Positions))
    check_range(
      self, 'num_continuations', 'groups', 'draft_vocab', min=0, kind=int
    )
    self._check_temperatures()
    check_range(self, 'decay', 'noise', 'eta', 'cross_entropy_weight', min=0)
    check_range(self, 'retention', min=0, max=1)
    if 0 < self.num_continuations < self.batch_size:
      raise UserError(
        f'num_continuations: got {self.num_continuations}, fewer than the '
        f'{self.batch_size} of a batch'
      )
    whole = self.continuation_batch * len(self.temperatures)
    if self.num_continuations % whole:
      raise UserError(
        f'num_continuations: got {self.num_continuations}, expected a multiple '
        f'of {whole}: whole batches of continuation_batch='
        f'{self.continuation_batch} at each of {len(self.temperatures)} '
        'temperatures'
      )
    if self.num_continuations and self.prompt_length > self.length:
      raise UserError(
        f'prompt_length: got {self.prompt_length}, more than the length '
        f'{self.length} of a sequence'
      )
    if self.ahead > self.length:
      raise UserError(
        f'ahead: got {self.ahead}, more than the {self.length} tokens of a '
        'sequence'
      )
    if self.groups > self.length - self.first_group:
      raise UserError(
        f'groups: got {self.groups}, more than the '
        f'{self.length - self.first_group} positions of a sequence that are '
        'trained'
      )

  def _check_temperatures(self) -> None:
    check_scalars('temperatures', self.temperatures)
    # Plain values have lists for tuples, and whole numbers.
    temperatures = tuple(map(float, self.temperatures))
    object.__setattr__(self, 'temperatures', temperatures)
    for temperature in temperatures:
      SamplingParams(temperature=temperature).check()
    if len(set(temperatures)) < len(temperatures):
      raise UserError(f'temperatures: got one twice in {temperatures}')

  @property
  def weights(self) -> Weights:
    """What is lessened."""
    return Weights(
      decay=self.decay,
      retention=self.retention,
      cross_entropy=self.cross_entropy_weight,
      loss=self.loss,
      eta=self.eta,
      positions=self.position_weights,
      unroll=self.ahead,
    )

  @property
  def first_group(self) -> int:
    """The first position whose heads or masks are trained.

    Of what the target wrote that is the prompt's last token.
    """
    return self.prompt_length - 1 if self.num_continuations else 0


def from_dict(values: dict[str, Any]) -> DistillConfig:
  """The config of plain values; `UserError` on a bad key or value."""
  with run_config.reading_config():
    return DistillConfig(**values)
