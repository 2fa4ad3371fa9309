"""What a GPU's schedule is read as; what compiles for one is in test_gpu.py."""

from specsamp.planning import kernels
from specsamp.planning.work import Kernels


def test_a_schedule():
  """Bodies of loops once, of branches never, collectives are no kernels."""
  schedule = """\
001: kCopy          [source | next=002 (1)] kCopy
002: kWhile         [prev=001 (1) | sink]
condition:
    003: kCustomKernel [source | sink] less grid: [1, 1, 1]
  body:
    000: kCommandBuffer [source | next=008 (1)]
        004: kCustomKernel [source | next=005 (1)] gemm_fusion_dot_1
        005: kGemm [prev=004 (1) | next=006 (1)] gemm
        006: kConditional [prev=005 (1) | sink]
          false_branch:
            007: kCustomKernel [source | sink] rarely
    008: kAllReduce [prev=000 (1) | next=010 (1)] kAllReduce
    009: kAsyncStart [prev=000 (1) | next=010 (1)] stream=1
        010: kAllGather [source | sink] kAllGather
    011: kConditional [prev=008 (1) | next=013 (1)]
      true_branch:
        000: kCommandBuffer [source | sink]
            012: kCustomKernel [source | sink] rarely_too
    013: kCustomKernel [prev=011 (1) | sink] after the branch
    014: kAsyncDone [source | sink] async_id=9
"""
  assert kernels.count(schedule) == Kernels(
    total=5, in_graphs=2, graphs=1, host_branches=1
  )
