"""Drafters by their names: defaults, lookups, and the trial of saved ones."""

import dataclasses
import json
from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from absl import logging
from testing import tiny

import specsamp
from specsamp import verification
from specsamp.checkpoints import drafter_dir
from specsamp.drafting import TokenTree, model_drafter
from specsamp.drafting.draft import DynamicTree, Law
from specsamp.drafting.drafter import NoDrafter
from specsamp.errors import UserError
from specsamp.experiments import loading

_CHAIN = TokenTree.chain(3)
_TREE = TokenTree.branching((2, 1))
VOCAB, WIDTH = 11, 16


@pytest.fixture(scope='module')
def models():
  target = tiny.model(26, seed=0)
  return loading.Models(target, lambda: tiny.first_layer(target), {})


@pytest.mark.parametrize(
  ('name', 'weights', 'num_layers', 'kind'),
  [
    ('self', '', 2, 'int8'),
    ('self', 'w8a8', 2, 'w8a8'),
    ('self:1', '', 1, ''),
    ('self:1', 'int8', 1, 'int8'),
  ],
)
def test_a_draft_of_the_targets_weights(name, weights, num_layers, kind):
  target = tiny.model(26, seed=0)
  draft = loading.self_draft(target, name, weights)
  assert (draft.config.num_layers, draft.weights) == (num_layers, kind)
  embedding = draft.params['embedding']
  assert (embedding is target.params['embedding']) == (not kind)
  norm = draft.params['layers_0']['mlp_norm']['scale']
  assert norm is target.params['layers_0']['mlp_norm']['scale']
  sampling = dict(max_new_tokens=12, sampling=specsamp.SamplingParams(0.0))
  plain = specsamp.generate(target, [[1, 2, 3]], **sampling)
  drafter = model_drafter(draft, 3)
  out = specsamp.generate(target, [[1, 2, 3]], drafter=drafter, **sampling)
  assert out.tokens == plain.tokens
  assert out.block_efficiency > 1


@pytest.mark.parametrize(
  ('name', 'weights', 'words'),
  [
    ('self:0', '', 'expected self:N with N at least 1'),
    ('self:2', '', "below 2, the target's layers"),
    ('self:half', '', 'expected self:N'),
    ('self', '', 'int8 weights, which the target has too'),
    ('self', 'w8a8', 'w8a8 weights, which the target has too'),
  ],
)
def test_drafts_that_are_no_part_of_the_target(name, weights, words):
  target = tiny.model(26, seed=0).quantized(weights or 'int8')
  with pytest.raises(UserError, match=words):
    loading.self_draft(target, name, weights)


@pytest.mark.parametrize(
  ('law', 'tree'),
  [
    *((law, tree) for law in get_args(Law) for tree in (_CHAIN, _TREE)),
    ('deterministic', DynamicTree.of(6, 3, 2)),
  ],
)
def test_every_law_has_a_lossless_verifier(law, tree):
  rule = verification.make(verification.default_name(law, tree))
  assert rule.lossless
  verification.check_law(rule, law, tree)  # raises otherwise


@pytest.mark.parametrize('name', ['', 'ngram', 'lookahead', 'ngram_or_draft'])
@pytest.mark.parametrize('verifier', ['', *verification.VERIFIERS])
def test_law_of_a_drafter_and_a_verifier(models, name, verifier):
  shape = 3 if verifier in ('', 'token', 'block') else _TREE
  if name == 'ngram_or_draft' or verifier == 'greedy_block':
    shape = 3
  if (name, verifier) == ('ngram_or_draft', 'top_plus_one'):
    return  # it drafts no candidates of this law
  drafter = models.drafter(name, shape, verifier=verifier)
  rule = verifier or verification.default_name(drafter.law, drafter.tree)
  if name in ('ngram', 'lookahead'):
    assert drafter.law == 'deterministic'
    if verifier not in ('', 'naive', 'gumbel', 'typical_lossy'):
      return  # refused when decoding: no choice of the law helps
  verification.check_law(verification.make(rule), drafter.law, drafter.tree)
  # A coupled verifier has the draft run its races.
  assert not models.drafter('', 3, 'iid', 'gumbel').coupled
  assert name or drafter.coupled == (verifier == 'gumbel')


def test_trained_drafters_run_the_races_of_a_coupled_verifier(models):
  trained = {'eagle': tiny.trained(models.target, 'eagle')}
  models = dataclasses.replace(models, trained=trained)
  assert models.drafter('eagle', _TREE, verifier='gumbel').coupled
  dynamic = DynamicTree.of(6, 3, 2)
  for shape, law, verifier in (
    (_TREE, 'deterministic', 'naive'),
    (_TREE, 'iid', 'gumbel'),
    (dynamic, '', 'gumbel'),
  ):
    assert not models.drafter('eagle', shape, law, verifier).coupled


def test_generate_and_engine_choose_the_verifier(models):
  target, law = models.target, 'without_replacement'
  drafter = model_drafter(models.draft, _TREE, law)
  options = dict(max_new_tokens=8, seed=3)
  chosen, given = (
    specsamp.generate(target, 'abcab', drafter=drafter, **options, **rule)
    for rule in ({}, {'verifier': 'multi_candidate'})
  )
  assert chosen.tokens == given.tokens
  engine = specsamp.Engine(target, slots=1, drafter=drafter, max_length=32)
  (same,) = engine.generate(['abcab'], **options)
  assert same.tokens == chosen.tokens[0]


@pytest.mark.parametrize('name', [*verification.VERIFIERS, 'own.module:Rule'])
def test_every_rule_has_one_without_a_draft(name):
  rule = verification.make(verification.name_without_draft(name))
  verification.check_law(rule, 'iid', NoDrafter().tree)
  if name == 'gumbel':  # whose text is the same with and without a draft
    assert verification.is_coupled(rule)


def test_no_drafter_by_name(models):
  models = loading.Models(models.target, lambda: pytest.fail('unneeded'), {})
  drafter = models.drafter('none', 4)
  assert isinstance(drafter, NoDrafter) and drafter.tree.depth == 0
  with pytest.raises(UserError, match="'nome'.*none"):
    models.drafter('nome', 4)


@pytest.fixture
def documents(tmp_path):
  (tmp_path / 'a.txt').write_text('abc')
  (tmp_path / 'b').mkdir()
  (tmp_path / 'b' / 'c.md').write_text('ca')
  (tmp_path / 'b' / 'latin.txt').write_bytes(b'\xe9')
  (tmp_path / 'blank').write_text('\n')
  return tmp_path


def test_parameters_of_lookups(models, documents):
  def drafter(name, **values):
    law = 'iid' if name == 'ngram_or_draft' else 'deterministic'
    return models.drafter(name, 3, law, lookup=loading.Lookup(**values))

  values = dict(n_max=5, n_min=2, datastore=f'{documents}/a.txt')
  alone = drafter('ngram', **values)
  for found in (alone, drafter('ngram_or_draft', **values).ngram):
    assert (found.n_max, found.n_min) == (5, 2)
    tokens = found.datastore.tokens[0]
    assert [t for t in tokens if t >= 0] == [0, 1, 2]
  for length, depth in ((0, 3), (2, 2), (9, 3)):
    both = drafter('ngram_or_draft', draft_length=length)
    assert (both.ngram.tree.depth, both.model.tree.depth) == (3, depth)
  assert drafter('lookahead', window=3).window == 3
  # A folder's files, except those that are not texts.
  folder = drafter('ngram', datastore=f'{documents}/b').datastore
  assert [t for t in folder.tokens[0] if t >= 0] == [2, 0]
  for name, message in (
    ('b/latin.txt', 'latin.txt: not UTF-8 text$'),
    ('nowhere', 'nowhere: No such file or directory$'),
    ('blank', 'blank: empty$'),
  ):
    with pytest.raises(UserError, match=message):
      drafter('ngram', datastore=f'{documents}/{name}')


@pytest.fixture
def warnings(monkeypatch):
  """Returns the warnings of the log."""
  found = []
  monkeypatch.setattr(
    logging, 'warning', lambda line, *args: found.append(line % args)
  )
  return found


@pytest.fixture(scope='module')
def alphabet():
  """Emits the alphabet: its layers add nothing to the embedding of a token."""
  model = tiny.model(VOCAB, 0, num_layers=1)
  layer = model.params['layers_0']
  params = model.params | {
    'layers_0': layer
    | {
      'attention': layer['attention'] | {'o': 0 * layer['attention']['o']},
      'mlp': layer['mlp'] | {'down': 0 * layer['mlp']['down']},
    },
    'embedding': jnp.eye(VOCAB, WIDTH),
    'final_norm': {'scale': jnp.ones(WIDTH)},
    'head': 3 * jnp.roll(jnp.eye(VOCAB, WIDTH), 1, axis=0),
  }
  model = dataclasses.replace(model, params=params)
  return loading.Models(model, lambda: model, {})


def _medusa(folder, step, **values):
  """Saves a head that drafts the token `step` after the last one."""
  tensors = {
    '0.0.linear.weight': np.zeros((WIDTH, WIDTH), np.float32),
    '0.0.linear.bias': np.zeros(WIDTH, np.float32),
    '0.1.weight': 9 * np.roll(np.eye(VOCAB, WIDTH, dtype=np.float32), step, 0),
  }
  folder.mkdir()
  values |= dict(medusa_num_heads=1, medusa_num_layers=1)
  (folder / 'config.json').write_text(json.dumps(values))
  (folder / 'model.safetensors').write_bytes(safetensors.numpy.save(tensors))
  return str(folder)


def test_drafters_in_folders_are_tried(alphabet, tmp_path, warnings):
  alphabet.drafter(_medusa(tmp_path / 'good', 2), 1, 'iid')
  assert warnings == []
  bad = _medusa(tmp_path / 'bad', 1)
  alphabet.drafter(bad, 1, 'iid')
  alphabet.deepest(bad)
  (line,) = warnings  # it is tried once
  assert line.startswith(f'drafter {bad}: 0.0') and 'other weights' in line
  # A drafter with almost no training, in a folder of `launch/distill.py`.
  trained = tmp_path / 'drafter'
  drafter_dir.save(tiny.trained(alphabet.target, 'medusa'), trained)
  alphabet.drafter(str(trained), 1, 'iid')
  assert 'trained too little' in warnings[-1]


@pytest.mark.parametrize(
  ('step', 'recorded', 'refusal', 'warning'),
  [
    (2, 1.0, '', ''),
    (1, 1.0, '0.00 of the .* of the 1.00 recorded .* other weights', ''),
    (1, 0.0, '', 'the same token'),  # a record of nothing
    (1, 0.01, '', 'the same token'),  # a record below chance
  ],
)
def test_a_drafter_with_a_record(
  alphabet, tmp_path, warnings, step, recorded, refusal, warning
):
  path = _medusa(tmp_path / 'd', step, specsamp_acceptance=recorded)
  if refusal:
    with pytest.raises(UserError, match=f'^drafter {path}: {refusal}') as error:
      alphabet.drafter(path, 1, 'iid')
    assert '\n' not in str(error.value) and warnings == []
    line = str(error.value)
    assert line.endswith('; --config.mismatched_drafter=true uses it')
    warning, _, _ = line.partition('; --config')
    alphabet = dataclasses.replace(alphabet, mismatched_drafter=True)
  alphabet.drafter(path, 1, 'iid')
  assert len(warnings) == bool(warning)
  assert not warning or warning in warnings[0]


def test_rotary_embeddings_that_differ_are_noted(models, monkeypatch):
  lines, config = [], models.target.config
  log = lambda line, *args: lines.append(line % args)
  monkeypatch.setattr(loading.logging, 'info', log)
  for kind in ('eagle', 'medusa'):
    head = tiny.published(models.target, kind)
    loading._note_rope(kind, head, config)
    other = dataclasses.replace(config, rope_theta=1e6)
    loading._note_rope(kind, head, other)
  assert lines == [
    'drafter eagle: rope_theta 10000, the target has rope_theta 1e+06'
  ]
