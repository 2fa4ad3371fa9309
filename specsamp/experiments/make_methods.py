"""From the values of a config to ways to decode."""

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
  """The method of its config.

  Raises:
    UserError: a drafter or a verifier that there is not, or no tree.
  """
  if method.dynamic_tree:
    tree = dynamic_tree(method.dynamic_tree, models.target)
  else:
    tree = token_tree(method.branching, models.target)
  drafter = models.drafter(
    method.drafter,
    tree,
    method.law,
    method.verifier,
    method.lookup,
  )
  if method.depths:
    drafter = adaptive_drafter(
      drafter,
      method.depths,
      [1.0] * len(method.depths),  # until they are measured
      method.least_confidence,
    )
  return Method(
    name=method.name,
    drafter=drafter,
    verifier=method.verifier
    or verification.default_name(drafter.law, drafter.tree),
    temperature=method.temperature,
    top_p=config.top_p_at(method.temperature)
    if method.top_p is None
    else method.top_p,
    tree_attention=method.tree_attention,
    top_k=method.top_k,
  )


def baseline(sampling: tuple[float, float, int]) -> Method:
  """Autoregressive sampling with this temperature, top-p and top-k."""
  temperature, top_p, top_k = sampling
  return Method(BASELINE, None, 'token', temperature, top_p, top_k=top_k)
