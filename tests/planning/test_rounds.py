"""Reads of passes and rounds, and GPUs by the driver's name."""

import jax
import jax.numpy as jnp
import pytest

from specsamp.drafting.draft import TokenTree
from specsamp.drafting.trained import make
from specsamp.models import param_shapes, presets
from specsamp.planning import gpu, rounds, topology, work


def test_a_driver_names_its_gpu():
  for name, chip in gpu.GPUS.items():
    assert gpu.of_kind(chip.description) == topology.parse(f'{name}:1')
  assert gpu.of_kind('NVIDIA H100 PCIe') is None  # another bandwidth


def test_a_pass_of_eagle_reads_its_layer_and_the_targets_head():
  config = presets.llama31_8b()
  module = make('eagle', config, 4)
  params = param_shapes(module)
  matrices = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
  scales = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 1]
  head = config.width * config.vocab_size
  eagle = rounds.eagle_pass(config, 3, 1024)
  expected = 2 * (head + sum(leaf.size for leaf in matrices))
  # The scale of the target's last norm is counted, but not read.
  expected += 4 * (sum(leaf.size for leaf in scales) + config.width)
  assert eagle.weights == expected
  plain = rounds.eagle_pass(config, 1, 1024)
  assert eagle.flops == 3 * plain.flops
  cache = 2 * config.num_kv_heads * config.head_dim * 1024
  assert eagle.caches == cache * jnp.dtype(config.dtype).itemsize


def test_a_round_drafts_level_by_level():
  config, draft = presets.llama31_8b(), presets.llama32_1b()
  over = lambda model, n: work.of_pass(model, shards=1, tokens=n, context=512)
  drafts = lambda n: over(draft, n)
  tree = TokenTree.branching((4, 2, 1))
  assert rounds.of_round(config, tree, drafts, 512) == [
    over(draft, 1), over(draft, 4), over(draft, 8), over(config, 21)
  ]  # fmt: skip
  assert rounds.of_round(config, TokenTree.chain(0), None, 512) == [
    over(config, 1)
  ]
  where = topology.parse('h100:1')
  one = rounds.of_passes([over(config, 1)], where)
  # 15.0 GB of matrices that a pass reads, at 3.35 TB/s.
  assert one.memory == pytest.approx(4.5, rel=0.02)
  assert one.memory < one.total < 1.3 * one.memory
  two = rounds.of_passes([over(config, 1)] * 2, where)
  assert two == pytest.approx([2 * each for each in one])
