"""Packaging of specsamp; tool settings live in pyproject.toml."""

import pathlib

from setuptools import find_packages, setup

# Launchers and configs lie at the top of a checkout, in the package of a wheel.
_FOLDERS = {
  '.'.join(['specsamp', *path.parent.parts]): path.parent.as_posix()
  for top in ('launch', 'configs')
  for path in sorted(pathlib.Path(top).rglob('*.py'))
}

# Models of the Hugging Face hub, tokenizer.json and chat templates.
_HF = ['huggingface_hub>=1.4', 'jinja2>=3.1.6', 'tokenizers>=0.20']
# Models in llama.cpp's format.
_GGUF = ['gguf>=0.17', *_HF]
# ROUGE, a score of tasks.
_EVAL = ['rouge-score>=0.1.2']
# A server with OpenAI's interface; jinja2 is for chat templates.
_SERVE = [
  'jinja2>=3.1.6',
  'prometheus-client>=0.20',
  'pydantic>=2.7',
  'starlette>=0.40',
  'uvicorn>=0.30',
]

setup(
  name='specsamp',
  version='0.1.0',
  description='Lossless speculative decoding of large transformers in JAX',
  long_description=pathlib.Path('README.md').read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  packages=[*find_packages(include=['specsamp', 'specsamp.*']), *_FOLDERS],
  package_dir=_FOLDERS,
  entry_points={'console_scripts': ['specsamp = specsamp.__main__:main']},
  package_data={
    'specsamp.serving': ['page.html'],
    'specsamp.zoo': ['*/*/*', '*/*/*/*'],
  },
  python_requires='>=3.11,<3.14',
  install_requires=[
    'absl-py>=2.1',
    'filelock>=4.0',
    'flax>=0.12',
    'jax>=0.10,<0.12',
    'matplotlib>=3.9',
    'ml-collections>=1.0',
    'numpy>=2.0',
    'optax>=0.2.5',
    'orbax-checkpoint>=0.11',
    'protobuf>=5.0',
    'safetensors>=0.5',
    'sentencepiece>=0.2',
    'tabulate>=0.9',
    'tqdm>=4.66',
  ],
  # Names have neither _ nor -: pip before 23.3 does not find an extra whose
  # name setuptools writes in another way than the user.
  extras_require={
    'tpu': ['jax[tpu]>=0.10,<0.12'],
    'gpu': ['jax[cuda12]>=0.10,<0.12'],
    # Compiles for GPUs where there is none: the compiler of jax's version, and
    # no CUDA library.
    'gpuaot': ['jax[cuda12-local]>=0.10,<0.12'],
    'eval': _EVAL,
    'gguf': _GGUF,
    'hf': _HF,
    'serve': _SERVE,
    # To be compared with transformers.
    'parity': [
      'jinja2>=3.1.6',
      'tokenizers>=0.20',
      'torch==2.13.0',
      'transformers>=5.0',
    ],
    # Builds the documents with the command in CONTRIBUTING.md, which imports
    # all modules.
    'docs': [*_SERVE, 'furo>=2025.12', 'myst-parser>=5.0', 'sphinx>=9.0'],
    # All that the README's test command needs, with nothing else installed.
    'test': [
      *_EVAL,
      *_GGUF,
      *_SERVE,
      'httpx>=0.27',
      'hypothesis>=6.100',
      # Of version 7 a kernel and its client have waited for each other.
      'ipykernel>=6.29,<7',
      'ipywidgets>=8.1',
      'nbclient>=0.10',
      'openai>=1.60',
      'pytest>=8.2',
      'pytest-xdist>=3.6',
      'pyyaml>=6.0',
      'ruff>=0.12',
      'scipy>=1.13',
      'setuptools>=77',
    ],
  },
)
