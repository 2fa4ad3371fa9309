"""Initial parameters of a run of distillation, from another drafter."""

import dataclasses

import jax
import numpy as np
import pytest
from testing import tiny

from specsamp.checkpoints import drafter_dir
from specsamp.drafting.trained import make
from specsamp.errors import UserError
from specsamp.models import Transformer
from specsamp.training import distill
from specsamp.training.distill_config import DistillConfig


@pytest.mark.integration
def test_a_parallel_drafter_starts_from_eagle(tmp_path):
  """In 32 bits, whatever the target computes in."""
  target = tiny.model(11, 0)
  sixteen = Transformer(dataclasses.replace(target.config, dtype='bfloat16'))
  target = dataclasses.replace(target, transformer=sixteen)
  start = tiny.trained(target, 'eagle')
  drafter_dir.save(start, tmp_path / 'eagle')
  config = DistillConfig(kind='eagle_parallel', init=str(tmp_path / 'eagle'))
  module = make('eagle_parallel', target.config, 3, num_layers=2)
  params = jax.jit(distill._init(config, module, target))(jax.random.key(0))
  new = params.keys() - start.params.keys()
  assert new == {'mask_embedding', 'mask_feature', 'layers_1'}
  dtypes = {leaf.dtype for leaf in jax.tree.leaves(params)}
  assert dtypes == {np.dtype('float32')}
  fuse = distill._times(params, distill._factors(config, target))['fuse']
  np.testing.assert_allclose(fuse, start.params['fuse'], rtol=2.0**-8)
  # The new layer adds nothing.
  assert not np.any(params['layers_1']['attention']['o'])
  assert not np.any(params['layers_1']['mlp']['down'])
  assert np.all(np.any(params['layers_1']['attention']['q'], axis=(0, 1)))
  heads = make('medusa', target.config, 3)
  with pytest.raises(UserError, match='has no parameter'):
    jax.eval_shape(distill._init(config, heads, target), jax.random.key(0))
  other = tiny.model(11, 1)
  with pytest.raises(UserError, match='trained for the target'):
    distill._init(config, module, other)


@pytest.mark.parametrize('kind', ['eagle', 'eagle_parallel'])
def test_eagle_trains_on_embeddings_as_large_as_features(kind, monkeypatch):
  target = tiny.model(11, 0)
  params = target.params | {'embedding': target.params['embedding'] / 20}
  target = dataclasses.replace(target, params=params)
  config = DistillConfig(kind=kind, groups=4)
  factors = distill._factors(config, target)
  rms = np.sqrt(np.mean(np.square(params['embedding'][:11])))
  np.testing.assert_allclose(factors['fuse'][0, -1] * rms, 1, rtol=0.02)
  module = make(kind, target.config, 3)
  trained = distill._init(config, module, target)(jax.random.key(0))
  tokens = np.random.default_rng(0).integers(11, size=(2, 9), dtype=np.int32)
  batch = dict(tokens=tokens, seed=np.arange(2), noise=np.zeros(2, np.float32))

  def loss(params):
    compute = distill.make_loss(config, module, target)
    return float(compute(params, (target.params, {}), batch)[0])

  got = loss(trained)
  drafter = distill._times(trained, factors)
  assert loss(drafter) != pytest.approx(got, rel=1e-3)
  monkeypatch.setattr(distill, '_factors', lambda *_: {})
  assert loss(drafter) == pytest.approx(got, rel=1e-5)


def test_treeflash_starts_from_dflash(tmp_path):
  target = tiny.model(11, 0)
  start = tiny.trained(target, 'dflash')
  drafter_dir.save(start, tmp_path / 'dflash')
  config = DistillConfig(kind='treeflash', init=str(tmp_path / 'dflash'))
  module = make('treeflash', target.config, 4)
  params = distill._init(config, module, target)(jax.random.key(0))
  assert params.keys() - start.params.keys() == {'token_mlp'}
  assert not params['token_mlp']['down'].any()


@pytest.mark.parametrize(
  ('kind', 'start', 'fields', 'message'),
  [
    # The parameters have the same names and shapes.
    ('dflash', 'eagle', {}, r'taps: got \(\), exp'),
    (
      'eagle3',
      'eagle3',
      dict(taps=(1, 2, 3)),
      r'taps: got \(1, 2, 3\), expected \(2, 3, 3\)$',
    ),
    (
      'eagle3',
      'eagle3',
      dict(feeds_normed=True),
      'feeds_normed: got True, expected False$',
    ),
  ],
)
def test_drafters_that_read_other_features_are_refused(
  kind, start, fields, message, monkeypatch
):
  target = tiny.model(11, 0, num_layers=6)
  trained = tiny.trained(target, start)
  module = trained.module.clone(**fields)
  trained = dataclasses.replace(trained, module=module)
  monkeypatch.setattr(drafter_dir, 'load', lambda _: trained)
  config = DistillConfig(kind=kind, init='IT')
  module = make(kind, target.config, 3, num_layers=2 - (kind == 'eagle3'))
  with pytest.raises(UserError, match=f'^init IT: {message}'):
    distill._init(config, module, target)
