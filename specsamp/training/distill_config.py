"""Config of a drafter's training."""

import dataclasses
from typing import Literal

from specsamp.drafting import trained as kinds
from specsamp.errors import UserError, check_name, check_range
from specsamp.sampling.transforms import SamplingParams
from specsamp.training import run_config

Loss = Literal['text', 'kl', 'tv', 'lk_alpha', 'lk_lambda']
Positions = Literal['decay', 'expected_length']


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig(run_config.RunConfig):
  """Settings of a drafter's training; they and the files fix the weights.

  Attributes:
    kind: kind of the drafter, one of `drafting.trained.KINDS`: medusa, hydra,
      eagle, mtp, eagle3, medusa_parallel, eagle_parallel, dflash or treeflash;
      or draft_model, layers that read no features, with the target's embedding
      and LM head.
    target: folder or GGUF file of the target, or its name at the hub; '' is the
      embedded target.
    ahead: tokens that the drafter drafts in a round: heads, or masks plus one.
      EAGLE can draft any number, and so can EAGLE-3, which learns to draft this
      number.
    draft_vocab: tokens that it can draft, the most frequent ones of the
      training text; 0 is all. Fewer tokens make drafting and training faster,
      and the text's other tokens are always rejected. EAGLE-3 trains an LM head
      for them, other kinds read these rows of the target's.
    num_layers: layers of a kind that has any: all but medusa and hydra. Most
      papers have one. More layers pay where a round is one pass and not a
      pass a token.
    init: folder of a drafter to start from, for a parallel drafter also one of
      EAGLE, for TreeFlash also one of DFlash. Layers that it lacks start as the
      identity, other parameters at random. '' starts at random.
    corpus: folder of text; '' is the standard library of this Python.
    conversations: file to train on in place of a corpus, see
      `data.conversations`; `launch/dialogues.py` makes one with the target. The
      loss counts tokens of answers only.
    pattern: files of the corpus, a glob relative to its folder.
    num_continuations: sequences to train on that the target writes
      (self-distillation); 0 trains on the text.
    prompt_length: tokens of text that each of these sequences begins with.
    temperatures: temperatures at which the target writes, the same number of
      sequences at each; 0 is greedy. A drafter drafts well only at temperatures
      that it was trained on.
    continuation_batch: sequences that the target writes at once.
    continuations: folder for these sequences, which several runs can share, one
      after the other. '' is in the workdir.
    features: folder for the target's features, which several runs can share,
      one after the other. '' computes them in every step. Features of several
      layers take separate files there, and that many times the space.
    groups: positions of a sequence whose heads, masks, blocks or steps are
      trained in a step, drawn at random; 0 is all. Positions of a prompt are
      skipped, because the text after them is not the target's.
    retention: share of the positions with mask or step j that also have mask or
      step j + 1.
    loss: loss of the draft's distribution, see `acceptance.per_position`. The
      published one is text for Medusa, Hydra and Medusa's ParallelSpec, and kl
      for EAGLE and its ParallelSpec; tv, lk_alpha and lk_lambda train the
      acceptance itself.
    eta: speed at which lk_lambda changes from kl to tv as a position improves;
      3 is common.
    position_weights: weights of the tokens of a draft: by `decay`, or by how
      much the expected length of a draft depends on each (expected_length).
      EAGLE learns one token ahead, so that token's weight is its acceptance.
    decay: factor of a weight per head, mask or step. Medusa, its ParallelSpec
      and EAGLE-3 have 0.8, EAGLE's ParallelSpec has 1, DFlash exp(-1 / 4) for
      blocks of 8 and exp(-1 / 7) for blocks of 16.
    noise: bound of the uniform noise on the features that a drafter reads
      (EAGLE).
    cross_entropy_weight: weight of `loss` next to the regression (EAGLE).
    storage: dtype of the matrices of the finished drafter.
  """

  kind: str
  target: str = ''
  ahead: int = 5
  draft_vocab: int = 0
  num_layers: int = 1
  init: str = ''
  corpus: str = ''
  pattern: str = '**/*.py'
  conversations: str = ''
  num_continuations: int = 0
  prompt_length: int = 128
  temperatures: tuple[float, ...] = (0.0,)
  continuation_batch: int = 32
  continuations: str = ''
  features: str = ''
  groups: int = 0
  retention: float = 1.0
  loss: Loss = 'kl'
  eta: float = 3.0
  position_weights: Positions = 'decay'
  decay: float = 0.8
  noise: float = 0.1
  cross_entropy_weight: float = 0.1
  storage: run_config.Storage = 'float32'

  def __post_init__(self):
    super().__post_init__()
    check_name('kind', self.kind, kinds.KINDS)
    check_range(
      self, 'ahead', 'prompt_length', 'continuation_batch', min=1, kind=int
    )
    check_range(self, 'num_layers', min=1, max=64, kind=int)
    check_range(
      self, 'num_continuations', 'groups', 'draft_vocab', min=0, kind=int
    )
    check_range(self, 'decay', 'noise', 'eta', 'cross_entropy_weight', min=0)
    check_range(self, 'retention', min=0, max=1)
    kind = kinds.KINDS[self.kind]
    if self.num_layers > 1 and not kind.has_layers:
      raise UserError(
        f'num_layers: {self.kind} has none, got {self.num_layers}'
      )
    if self.draft_vocab and 'draft_vocab' not in kind.fields:
      raise UserError(
        f'draft_vocab: {self.kind} drafts all tokens, got {self.draft_vocab}'
      )
    for temperature in self.temperatures:
      SamplingParams(temperature=temperature).check()
    number = len(set(self.temperatures))
    if not number or number < len(self.temperatures):
      raise UserError(
        f'temperatures: got {self.temperatures}, expected one or more, each '
        'once'
      )
    if self.num_continuations % (self.continuation_batch * number):
      raise UserError(
        f'num_continuations: got {self.num_continuations}, expected a multiple '
        f'of {self.continuation_batch * number}: whole batches of '
        f'continuation_batch={self.continuation_batch} at each of {number} '
        'temperatures'
      )
    if self.conversations and (self.corpus or self.num_continuations):
      raise UserError(
        'conversations: must not be set with corpus or num_continuations'
      )
    if self.num_continuations and self.prompt_length > self.length:
      raise UserError(
        f'prompt_length: got {self.prompt_length}, more than the length '
        f'{self.length} of a sequence'
      )

  @property
  def reads_features(self) -> bool:
    """True if the drafter or the loss needs the target's features."""
    needs_p = self.loss != 'text' or self.position_weights == 'expected_length'
    return needs_p or kinds.KINDS[self.kind].reads_features

  @property
  def first_group(self) -> int:
    """Returns the first position whose heads or masks are trained.

    In a sequence that the target wrote it is the last token of the prompt.
    """
    return self.prompt_length - 1 if self.num_continuations else 0
