"""DFlash is trained on the blocks that it drafts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

from specsamp import SamplingParams
from specsamp.decoding.request import Request
from specsamp.drafting import TokenTree, dflash
from specsamp.drafting.drafter import after_prompts
from specsamp.drafting.features import TargetHead
from specsamp.drafting.trained import make, trained_drafter
from specsamp.sampling import draw
from specsamp.training.distill_config import DistillConfig
from specsamp.training.objectives import blocks
from specsamp.training.objectives.depths import Batch

_VOCAB, _BATCH, _LENGTH, _AHEAD = 11, 2, 12, 3
_STARTS = np.array([[7, 2, 11, 0, 4], [1, 8, 4, 5, 10]], np.int32)
_TOKENS = np.random.default_rng(0).integers(
  _VOCAB, size=(_BATCH, _LENGTH + 1), dtype=np.int32
)
_CONFIG = DistillConfig(kind='dflash', decay=0.7)


@functools.cache
def _made(positions='rotary', windows=(), **fields):
  target = tiny.model(_VOCAB, 28, num_layers=3, positions=positions)
  trained = tiny.trained(target, 'dflash', _AHEAD, num_layers=2)
  config = dataclasses.replace(trained.module.config, windows=windows)
  module = trained.module.clone(config=config, **fields)
  return target, dataclasses.replace(trained, module=module)


@functools.partial(jax.jit, static_argnums=0)
def _logits(module, head, params, tapped_bte, tokens_bt, starts_bm):
  """Returns the logits at the masks of each block: [B, M, K - 1, V]."""
  context = module.apply({'params': params}, tapped_bte, method='context')
  hidden = blocks.outputs(module, params, head, context, tokens_bt, starts_bm)
  shape = (*hidden.shape[:3], _VOCAB)
  flat = hidden.reshape(len(hidden), -1, hidden.shape[-1])
  return head.logits(flat).reshape(shape)


def _read(target, taps, tokens_bt):
  """Returns the target's features at the taps, and the LM head's input."""
  out = target.transformer.clone(taps=taps).apply(
    {'params': target.params}, tokens_bt
  )
  return out.features, out.hidden


@pytest.mark.parametrize(
  ('shape', 'args'),
  [
    ((-1, 0, 0, 0, 1, 1, 3, 4), {}),
    ((-1, 0, 1, 2), dict(windows=(4, 0))),
    pytest.param(
      (-1, 0, 1, 2, 3),
      dict(
        windows=(5,),
        windows_end_at_root=True,
        causal_windows=False,
        drafts_at_root=True,
      ),
      marks=pytest.mark.extended,
    ),
    pytest.param(
      (-1, 0, 1, 2), dict(positions='relative'), marks=pytest.mark.slow
    ),
  ],
)
def test_blocks_are_drafts_after_rounds_with_rejections(shape, args):
  """Compares logits of training with those of drafting from a used cache."""
  target, trained = _made(**args)
  drafter = trained_drafter(
    trained, target, TokenTree(shape), 'without_replacement'
  )
  job = Request.make(
    target, [[3, 1, 4, 1, 5], [7], [2, 7, 1]], drafter, 'multi_candidate',
    sampling=SamplingParams(temperature=np.array([8.0, 30.0, 1.0])),
    max_new_tokens=[24] * 3, seed=1, stop_tokens=[],
  )  # fmt: skip
  state, accepted = job.prefill(), []
  while not np.asarray(state.done).any():
    length = np.asarray(state.length)
    logits = drafter.target_head.logits(state.drafter.hidden)
    # Tokens after the root must not matter.
    tokens = np.asarray(state.tokens)
    tapped, _ = _read(target, drafter.taps, tokens)
    wanted = _logits(
      trained.module,
      drafter.target_head,
      trained.params,
      tapped,
      tokens,
      length[:, None] - 1,
    )
    size = 1 + np.abs(wanted).max()
    np.testing.assert_allclose(
      logits, wanted[:, 0, : drafter.tree.depth], atol=1e-5 * size, rtol=0
    )
    state = job.decode(state, rounds=1)
    accepted += (np.asarray(state.length) - length - 1).tolist()
  assert {0, drafter.tree.depth} <= set(accepted)


def test_blocks_do_not_see_each_other():
  target, trained = _made()
  head = TargetHead.of(target.transformer, target.params)
  tapped, _ = _read(target, trained.module.taps, _TOKENS[:, :-1])
  logits = lambda starts: _logits(
    trained.module, head, trained.params, tapped, _TOKENS[:, :-1], starts
  )
  alone = np.concatenate([logits(_STARTS[:, [m]]) for m in range(5)], axis=1)
  np.testing.assert_allclose(logits(_STARTS), alone, atol=1e-4, rtol=0)


@pytest.mark.parametrize('at_root', [False, True])
@pytest.mark.parametrize('is_causal', [False, True])
def test_masks_by_hand(at_root, is_causal):
  """A block of 3 at position 5 of a text of 7, in a window of 4."""
  _, trained = _made(
    windows=(4, 0), windows_end_at_root=at_root, causal_windows=is_causal
  )
  at_q = np.arange(3, dtype=np.int32)
  masks = dflash.block_masks(
    trained.module,
    np.full((1, 3), 5),
    at_q,
    np.r_[:7, [99] * 3][None],
    np.r_[[-1] * 7, at_q][None, None],
  )
  draw = lambda mask: [''.join('.x'[int(x)] for x in row) for row in mask[0]]
  assert draw(np.broadcast_to(masks[0], (1, 3, 10))) == ['xxxxx..xxx'] * 3
  text = ['.xxxx..'] * 3 if at_root else ['..xxx..', '...xx..', '....x..']
  block = ['x..', 'xx.', 'xxx'] if is_causal else ['xxx'] * 3
  assert draw(masks[4]) == [a + b for a, b in zip(text, block, strict=True)]


def test_parts_of_the_blocks_have_the_loss_and_gradient_of_all(monkeypatch):
  """Five anchors in two parts of three, one of them padding."""
  target, trained = _made()
  head = TargetHead.of(target.transformer, target.params)
  features, hidden = _read(target, trained.module.taps, _TOKENS[:, :-1])
  batch = Batch(_TOKENS, _STARTS, features, None, hidden)
  compute = jax.value_and_grad(
    lambda params: blocks.dflash(trained.module, params, head, batch, _CONFIG),
    has_aux=True,
  )
  one = jax.jit(compute)(trained.params)
  monkeypatch.setattr(blocks, '_PART', 3 * (_AHEAD + 1))
  parts = jax.jit(lambda params: compute(params))(trained.params)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
    one,
    parts,
  )


@functools.partial(jax.jit, static_argnums=3)
def _first_draft(drafter, tokens_bt, features_btf, capacity):
  """Returns the state and the draft after whole rows."""
  length_b = jnp.full(len(tokens_bt), tokens_bt.shape[1], jnp.int32)
  state = after_prompts(drafter, tokens_bt, length_b, features_btf, capacity)
  sampling = SamplingParams().broadcast(len(tokens_bt))
  keys_b = draw.row_keys(jnp.arange(len(tokens_bt), dtype=jnp.int32))
  draft, _ = drafter.propose(state, tokens_bt, length_b, sampling, keys_b)
  return state.hidden, draft


def test_treeflash_reads_the_token_before():
  """q after a node is that of training on the node's path."""
  target = tiny.model(_VOCAB, 28, num_layers=3)
  trained = tiny.trained(target, 'treeflash', _AHEAD, num_layers=2)
  tree = TokenTree((-1, 0, 0, 1, 1, 2, 3, 3))
  make_drafter = functools.partial(
    trained_drafter, target=target, shape=tree, law='without_replacement'
  )
  drafter = make_drafter(trained)
  features, _ = _read(target, drafter.taps, _TOKENS)
  hidden, draft = _first_draft(drafter, _TOKENS, features, 32)
  parents = np.asarray(tree.internal)
  embedded = drafter.target_head.embed(draft.tokens[:, parents])
  at_depth = hidden[:, np.asarray(tree.depths)[parents]]
  read = drafter.apply(at_depth, embedded, method='after')
  logits = drafter.target_head.logits(read)
  np.testing.assert_allclose(draft.q, jax.nn.softmax(logits), atol=1e-5)
  # A level's nodes have different q.
  assert np.abs(draft.q[:, 1] - draft.q[:, 2]).max() > 0.1

  # It starts as DFlash.
  params = dict(trained.params)
  mlp = params['token_mlp']
  params['token_mlp'] = mlp | {'down': jnp.zeros_like(mlp['down'])}
  start = dataclasses.replace(trained, params=params)
  plain = dataclasses.replace(
    tiny.trained(target, 'dflash', _AHEAD, num_layers=2),
    params={k: v for k, v in params.items() if k != 'token_mlp'},
  )
  drafts = [
    _first_draft(make_drafter(each), _TOKENS, features, 32)[1]
    for each in (start, plain)
  ]
  np.testing.assert_array_equal(drafts[0].tokens, drafts[1].tokens)
  np.testing.assert_allclose(drafts[0].q, drafts[1].q, atol=1e-5)
  fresh = trained.module.init_params(jax.random.key(0))
  assert not fresh['token_mlp']['down'].any()
  assert fresh['token_mlp']['fuse'].any()


@pytest.mark.parametrize(
  ('num_layers', 'count', 'taps'),
  [
    (36, 5, (2, 10, 18, 26, 34)),  # the authors' for Qwen3 8B
    (32, 1, (17,)),
    (3, 3, (2,)),
  ],
)
def test_taps_are_spread(num_layers, count, taps):
  config = tiny.model(_VOCAB, 0, num_layers=1).config
  config = dataclasses.replace(config, num_layers=num_layers)
  assert make('dflash', config, 3, count).taps == taps
