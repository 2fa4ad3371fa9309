"""Packaging of specsamp; tool settings live in pyproject.toml."""

import pathlib

from setuptools import find_packages, setup

# Launchers and configs lie at the top of a checkout, in the package of a wheel.
_FOLDERS = {
  '.'.join(['specsamp', *path.parent.parts]): path.parent.as_posix()
  for top in ('launch', 'configs')
  for path in sorted(pathlib.Path(top).rglob('*.py'))
}

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
  extras_require={
    'tpu': ['jax[tpu]>=0.10,<0.12'],
    'gpu': ['jax[cuda12]>=0.10,<0.12'],
    # To compile for GPUs where there is none: no library of CUDA's is needed.
    'gpu_aot': [
      'jax-cuda12-pjrt>=0.10,<0.12',
      'jax-cuda12-plugin>=0.10,<0.12',
    ],
    # Scores of tasks: ROUGE.
    'eval': ['rouge-score>=0.1.2'],
    # Models of Hugging Face: names of the hub, tokenizer.json, chat templates.
    'hf': ['huggingface_hub>=0.34', 'jinja2>=3.1.6', 'tokenizers>=0.20'],
    # An OpenAI-compatible server.
    'serve': [
      'prometheus-client>=0.20',
      'starlette>=0.40',
      'uvicorn>=0.30',
    ],
    # To be compared with transformers.
    'parity': [
      'jinja2>=3.1.6',
      'tokenizers>=0.20',
      'torch==2.13.0',
      'transformers>=5.0',
    ],
    # To build the documents: CONTRIBUTING.md has the command.
    'docs': ['furo>=2025.12', 'myst-parser>=5.0', 'sphinx>=9.0'],
    'test': [
      'httpx>=0.27',
      'hypothesis>=6.100',
      # Of version 7 a kernel and its client have waited for each other.
      'ipykernel>=6.29,<7',
      'ipywidgets>=8.1',
      'nbclient>=0.10',
      'openai>=1.60',
      'prometheus-client>=0.20',
      'pytest>=8.2',
      'pytest-xdist>=3.6',
      'rouge-score>=0.1.2',
      'ruff>=0.12',
      'scipy>=1.13',
      'setuptools>=77',
      'starlette>=0.40',
      'uvicorn>=0.30',
    ],
  },
)
