"""Published GGUF files compared with transformers.

SPECSAMP_MODELS names a folder with files NAME.gguf, and for each of them a
folder NAME that transformers reads, with the dequantized weights in float32 and
a tokenizer. Without it the tests are skipped.
"""

import gc
import os
import pathlib
import random

import jax
import numpy as np
import pytest
from testing import foreign, tiny

import specsamp
from specsamp.checkpoints.gguf import file, tokenizer
from specsamp.drafting import TokenTree, model_drafter, ngram_drafter

pytestmark = [pytest.mark.slow, pytest.mark.parity]
_FOLDER = pathlib.Path(os.environ.get('SPECSAMP_MODELS', '/nowhere'))
_NAMES = sorted(
  path.stem for path in _FOLDER.glob('*.gguf') if path.with_suffix('').is_dir()
)
# Smaller models of the same family; others are drafted by their first layer.
_DRAFTS = {'qwen2.5-coder-1.5b': 'qwen2.5-coder-0.5b'}
_TEXTS = [
  '', 'a', ' a', '  a', 'a ', 'a  ', '\n', '\n\n', '\t', '\t\tx', ' ' * 31,
  'Hello world', 'Hello   world', '  leading', 'trailing   ', 'a\n\n1',
  '1234567890', '12 345 6', '3.14159', '½ ² Ⅷ ٣', '日本語のテキスト',
  '中文测试123', '한국어', 'привет, мир', '🙂', '👩‍👩‍👧‍👦 family', 'naïve café',
  'e\u0301 decomposed', 'ﬁ ligature', '\u00a0nbsp\u00a0', '\r\n crlf\r\n',
  "I'm you're WE'LL 'S",
  'def f(x):\n    return x + 1\n', 'if (a<b && c>d) { e->f(); }',
  '#include <stdio.h>\nint main(void) {\n\treturn 0;\n}', '<0x0A>', '\x00\x01',
  '<|im_start|>user\nhi<|im_end|>\n', '<|endoftext|>', '<bos>x<eos>',
  '<start_of_turn>user\nhi<end_of_turn>', '<tool_call>{"a": 1}</tool_call>',
]  # fmt: skip
_PARTS = [
  'a', 'Z', ' ', '  ', '\n', '\t', '1', '23', '.', '!!', 'é', '日', '本', '🙂',
  '<|im_end|>', '<eos>', 'def ', '_x', '()', '==', "'s", '\u0301', '\r', '—',
]  # fmt: skip


def _texts():
  rng = random.Random(0)
  more = (rng.choices(_PARTS, k=rng.randint(1, 25)) for _ in range(300))
  return (_TEXTS + [''.join(parts) for parts in more])[:300]


@pytest.fixture(scope='module', params=_NAMES)
def name(request):
  yield request.param
  jax.clear_caches()
  gc.collect()


def test_tokenizer(name):
  import tokenizers
  import transformers

  values, _ = file.read(_FOLDER / f'{name}.gguf')
  ours = tokenizer.read(values)
  theirs = transformers.AutoTokenizer.from_pretrained(_FOLDER / name)
  if values['tokenizer.ggml.pre'] == 'smollm':
    # transformers reads no rule for digits from the file; this is that of the
    # published tokenizer.
    pre = tokenizers.pre_tokenizers
    theirs.backend_tokenizer.pre_tokenizer = pre.Sequence(
      [
        pre.Digits(individual_digits=True),
        pre.ByteLevel(add_prefix_space=False),
      ]
    )
  for text in _texts():
    ids = theirs.encode(text)
    assert ours.encode(text) == ids, text
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_logits_and_greedy_texts(name, optimized):
  import transformers

  values, _ = file.read(_FOLDER / f'{name}.gguf')
  tokens = tokenizer.read(values)
  start = 'def fibonacci(n):\n    """Returns the first n numbers."""\n'
  prompts = [tokens.encode(start), tokens.encode('The capital of France is')]
  # Beyond the window of layers that have one.
  window = values.get('gemma3.attention.sliding_window', 0)
  text = tokens.encode(pathlib.Path(__file__).read_text(encoding='utf-8'))
  text = [text[: window + 100]]
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
    _FOLDER / name, dtype='float32'
  )
  theirs.generation_config.eos_token_id = None
  expected = foreign.logits(theirs, text)
  completions = [foreign.greedy(theirs, prompt, 64) for prompt in prompts]
  del theirs
  gc.collect()
  model = specsamp.load(_FOLDER / f'{name}.gguf', dtype='float32')
  got = jax.jit(model.transformer.apply)(
    {'params': model.params}, np.array(text, np.int32)
  ).logits
  size = model.config.num_tokens
  error = np.abs(got - expected)[..., :size].max()
  error /= np.abs(expected[..., :size]).max()
  print(f'{name}: logits differ by {error:.1e} of the largest')
  assert error < 1e-4
  if name in _DRAFTS:
    draft = specsamp.load(_FOLDER / f'{_DRAFTS[name]}.gguf', dtype='float32')
  else:
    draft = tiny.first_layer(model)
  draft = draft.for_target(model)
  for drafter in (
    None,
    model_drafter(draft, 4),
    ngram_drafter(4),
    model_drafter(draft, TokenTree.branching((3, 2, 1)), 'iid'),
  ):
    emitted = specsamp.generate(
      model,
      prompts,
      drafter=drafter,
      sampling=specsamp.SamplingParams(temperature=0.0),
      max_new_tokens=64,
      stop_tokens=[],
    )
    print(f'{name}: {emitted.block_efficiency} tokens per step')
    assert emitted.tokens == completions, drafter


@pytest.mark.parametrize(('kind', 'least'), [('int8', 0.9), ('w8a8', 0.75)])
def test_weights_in_8_bits(name, kind, least):
  """Compares 256 tokens of English with float32; `pytest -s` prints the error.

  The acceptance rate is that of a draft of the rounded model at temperature 1.
  """
  model = specsamp.load(_FOLDER / f'{name}.gguf', dtype='float32')
  text = pathlib.Path('docs/concepts.md').read_text(encoding='utf-8')
  tokens = np.asarray([model.tokenizer.encode(text)[:256]])

  def logits(model):
    run = jax.jit(model.transformer.apply)
    out = run({'params': model.params}, tokens).logits
    return np.asarray(out)[:, :, : model.config.num_tokens]

  exact, rounded = logits(model), logits(model.quantized(kind))
  error = np.abs(rounded - exact)
  accepted = np.minimum(*map(jax.nn.softmax, (exact, rounded))).sum(-1).mean()
  agreed = (exact.argmax(-1) == rounded.argmax(-1)).mean()
  print(
    f'\n{name} {kind}: error of a logit {error.mean():.3f}, at most '
    f'{error.max():.2f} (standard deviation {exact.std():.2f}); most probable '
    f'token equal {agreed:.3f}, accepted {accepted:.3f}'
  )
  assert min(accepted, agreed) > least
