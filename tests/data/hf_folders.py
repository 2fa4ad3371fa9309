"""Folders in the format of Hugging Face, with tokenizers trained here."""

import json
import pathlib

from specsamp.data.tokenizer_export import export

END, TURN = '<|endoftext|>', '<|turn|>'
# Qwen 2 splits a text by this pattern before it looks for pieces.
_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)


def write(folder: pathlib.Path, **files) -> pathlib.Path:
  """Writes JSON files, named without their ending."""
  folder.mkdir(exist_ok=True)
  for name, values in files.items():
    (folder / f'{name}.json').write_text(json.dumps(values))
  return folder


def byte_level(texts, form: str = 'gpt2'):
  """Returns a byte-level BPE of the `tokenizers` library.

  Args:
    texts: to train it on.
    form: gpt2 has no bos, llama3 one in its post-processor; qwen normalizes
      and has an added token that is not special.
  """
  import tokenizers
  from tokenizers import (
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
  )

  made = tokenizers.Tokenizer(models.BPE())
  made.decoder = decoders.ByteLevel()
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  if form != 'gpt2':
    made.pre_tokenizer = pre_tokenizers.Sequence(
      [
        pre_tokenizers.Split(tokenizers.Regex(_WORDS), 'isolated'),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
      ]
    )
  if form == 'qwen':
    made.normalizer = normalizers.NFC()
  trainer = trainers.BpeTrainer(
    vocab_size=400,
    show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
  )
  made.train_from_iterator(texts, trainer)
  made.add_special_tokens([END, TURN])
  if form == 'qwen':
    made.add_tokens(['<think>'])
  if form == 'llama3':
    made.post_processor = processors.TemplateProcessing(
      single=f'{TURN} $A', special_tokens=[(TURN, made.token_to_id(TURN))]
    )
  return made


def gpt2(folder: pathlib.Path, texts) -> pathlib.Path:
  made = byte_level(texts)
  end = made.token_to_id(END)
  write(
    folder,
    tokenizer_config={'model_max_length': 1024},
    config={'model_type': 'gpt2', 'eos_token_id': end, 'bos_token_id': end},
  )
  made.save(str(folder / 'tokenizer.json'))
  return folder


def llama3(folder: pathlib.Path, texts) -> pathlib.Path:
  made = byte_level(texts, 'llama3')
  ids = [made.token_to_id(END), made.token_to_id(TURN)]
  write(
    folder,
    tokenizer_config={
      'tokenizer_class': 'PreTrainedTokenizerFast',
      'bos_token': TURN,
      'eos_token': TURN,
      'clean_up_tokenization_spaces': True,
    },
    generation_config={'eos_token_id': ids},
    config={'model_type': 'llama', 'eos_token_id': ids[0]},
  )
  made.save(str(folder / 'tokenizer.json'))
  return folder


def qwen(folder: pathlib.Path, texts) -> pathlib.Path:
  made = byte_level(texts, 'qwen')
  write(
    folder,
    tokenizer_config={
      'tokenizer_class': 'PreTrainedTokenizerFast',
      'bos_token': None,
      'eos_token': TURN,
      'pad_token': END,
      'add_bos_token': False,
    },
    config={
      'model_type': 'qwen2',
      'bos_token_id': made.token_to_id(END),  # begins no text
      'eos_token_id': made.token_to_id(TURN),
    },
  )
  made.save(str(folder / 'tokenizer.json'))
  return folder


def opt(folder: pathlib.Path, texts) -> pathlib.Path:
  """Writes vocab.json and merges.txt; </s> begins and ends a text."""
  model = json.loads(byte_level(texts).to_str())['model']
  vocab = model['vocab']
  vocab |= {'</s>': len(vocab), '<pad>': len(vocab) + 1}
  write(
    folder,
    vocab=vocab,
    tokenizer_config={
      'tokenizer_class': 'GPT2Tokenizer',
      'add_bos_token': True,
      'unk_token': {'content': '</s>', '__type': 'AddedToken'},
      'bos_token': {'content': '</s>', '__type': 'AddedToken'},
      'eos_token': {'content': '</s>', '__type': 'AddedToken'},
      'pad_token': {'content': '<pad>', '__type': 'AddedToken'},
    },
    config={'model_type': 'opt', 'eos_token_id': vocab['</s>']},
  )
  merges = [' '.join(pair) for pair in model['merges']]
  (folder / 'merges.txt').write_text('\n'.join(['#version: 0.2', *merges]))
  return folder


def vicuna(folder: pathlib.Path, proto: bytes, legacy: bool) -> pathlib.Path:
  """Writes tokenizer.model without a tokenizer.json, and two added tokens."""
  write(
    folder,
    tokenizer_config={
      'tokenizer_class': 'LlamaTokenizer',
      'legacy': legacy,
      'add_bos_token': True,
    },
    special_tokens_map={
      'bos_token': {'content': '<s>', 'lstrip': False},
      'eos_token': '</s>',
      'unk_token': '<unk>',
      'pad_token': '<pad>',
    },
    added_tokens={'<pad>': 32000, '<think>': 32001},
    config={'model_type': 'llama', 'eos_token_id': 2},
  )
  (folder / 'tokenizer.model').write_bytes(proto)
  return folder


def llama(folder: pathlib.Path, tokenizer, **config) -> pathlib.Path:
  """Exports a SentencePiece model as a tokenizer.json of LLaMA 2's kind."""
  folder.mkdir()
  export(tokenizer, folder)
  config = {'model_type': 'llama', **config}
  return write(
    folder,
    tokenizer_config={
      'tokenizer_class': 'LlamaTokenizer',
      'bos_token': '<s>',
      'eos_token': '</s>',
      'unk_token': '<unk>',
      'legacy': config.pop('legacy', False),
      'add_bos_token': True,
    },
    config=config,
  )
