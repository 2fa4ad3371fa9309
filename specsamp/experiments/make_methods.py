"""Methods of decoding from the values of a config."""

from specsamp import verification
from specsamp.drafting.adaptive import adaptive_drafter
from specsamp.evaluation.methods import BASELINE, Method
from specsamp.experiments import loading
from specsamp.experiments.config import SampledConfig
from specsamp.experiments.method_config import MethodConfig
from specsamp.experiments.trees import dynamic_tree, token_tree


def make_method(
  config: SampledConfig, method: MethodConfig, models: loading.Models
) -> Method:
  """Returns the method of a config.

  Raises:
    UserError: the drafter, the verifier or the tree is invalid.
  """
  if method.dynamic_tree:
    tree = dynamic_tree(method.dynamic_tree, models.target)
  else:
    tree = token_tree(method.branching, models.target)
  drafter = models.drafter(
    method.drafter, tree, method.law, method.verifier, method.lookup
  )
  if method.depths:
    costs = [1.0] * len(method.depths)  # until they are measured
    drafter = adaptive_drafter(
      drafter, method.depths, costs, method.least_confidence
    )
  default_rule = verification.default_name(drafter.law, drafter.tree)
  default_top_p = config.top_p_at(method.temperature)
  return Method(
    name=method.name,
    drafter=drafter,
    verifier=method.verifier or default_rule,
    temperature=method.temperature,
    top_p=default_top_p if method.top_p is None else method.top_p,
    tree_attention=method.tree_attention,
    top_k=method.top_k,
  )


def baseline(sampling: tuple[float, float, int]) -> Method:
  """Returns autoregressive sampling with this temperature, top-p and top-k."""
  temperature, top_p, top_k = sampling
  return Method(BASELINE, None, 'token', temperature, top_p, top_k=top_k)
