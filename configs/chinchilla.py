"""Chinchilla 70B with its 4B draft on TPU pods, planned by the TPU compiler.

Reproduces what Chen et al. 2302.01318 report of their setup, 16 TPU v4, as far
as a compiler and a roofline can: the times of section 6, table 1 turned into
tokens a loop, the shape of figure 1, and why the draft is wide and shallow.
Two to three minutes a slice on 2 CPU cores, no TPU needed.

  python launch/plan.py --config=configs/chinchilla.py --topology=v4:2x2x4

`:predict` compiles nothing and takes seconds. Times of your own, in place of
predicted ones: --config.measured=FILE, a JSON object with any of draft_ms (a
draft step), score_ms (a scoring pass of γ + 1 tokens), target_ms (a step of the
target alone). Models of your own, --config.target.num_layers=.. and so on, want
--config.paper_ms='()' --config.paper_speedups='()' too.
"""

import dataclasses

import ml_collections

from specsamp.errors import describe_unknown
from specsamp.models import presets
from specsamp.planning.prices import EMBEDDED_PAIR


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: predict to compile nothing."""
  if arg not in (None, 'predict'):
    raise ValueError(
      describe_unknown('argument', arg, ['predict'], ', or none')
    )
  model = lambda preset: ml_collections.ConfigDict(dataclasses.asdict(preset))
  return ml_collections.ConfigDict(
    dict(
      title='Chinchilla 70B and its 4B draft',
      # Shapes of `models.presets`, each a `TransformerConfig`.
      target=model(presets.chinchilla_70b()),
      draft=model(presets.chinchilla_draft_4b()),
      alternative=model(presets.chinchilla_7b()),  # another draft
      gamma=4,  # drafted tokens of the compiled programs
      context=2048,  # slots of the caches
      batch=1,
      alphas=(0.6, 0.7, 0.8, 0.9),  # acceptance rates to predict speedups at
      # Slices to predict, and not to compile for.
      compare=('v4-32', 'v5e-16', 'v5p-32', 'v6e-16'),
      # Slices of the alternative, by itself.
      alternative_on=('v4:2x2x1', 'v4:2x2x2', 'v4:2x2x4', 'v4:2x4x4'),
      measured='',  # a JSON file of times to use in place of predicted ones
      # Section 6: model, slice, milliseconds a token.
      paper_ms=(
        ('target', 'v4:2x2x4', 14.1),
        ('draft', 'v4:2x2x4', 1.8),
        ('alternative', 'v4:2x2x1', 5.0),
      ),
      # Table 1: task, speedup.
      paper_speedups=(
        ('XSum, nucleus', 1.92),
        ('XSum, greedy', 2.01),
        ('HumanEval, nucleus', 2.46),
      ),
      compile=arg is None,  # minutes for each slice
      # What a pass over N nodes should take; its keys are `PriceConfig`'s.
      prices=dict(
        nodes=(1, 8, 16, 32, 64, 128),  # () leaves the list out
        batches=(1, 8, 32),
        contexts=(2048,),
        # ((name, has_nucleus, (chance, ..)), ..): whether the sampling has a
        # nucleus, the chance that the child of rank k is accepted.
        acceptance=EMBEDDED_PAIR,
        compile_nodes=(),  # sizes to compile passes of, more minutes
      ),
    )
  ).lock()
