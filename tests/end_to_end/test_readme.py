"""README and docs: their Python runs, their commands and links are valid."""

import itertools
import json
import pathlib
import re
import shlex

import pytest
from testing import launching, shallow

from specsamp import zoo
from specsamp.data import corpora
from specsamp.utils import home

_README = pathlib.Path('README.md')
_CONTRIBUTING = pathlib.Path('CONTRIBUTING.md')
_TEXTS = [_README, _CONTRIBUTING, *sorted(pathlib.Path('docs').rglob('*.md'))]
_LINKED = [
  *_TEXTS,
  pathlib.Path('CHANGELOG.md'),
  *sorted(pathlib.Path('notebooks').glob('*.ipynb')),
]
# Scripts whose docstrings have commands.
_SCRIPTS = [
  *sorted(pathlib.Path('configs').rglob('*.py')),
  *home.launchers().values(),
]
# Depths of the drafts of each `out` of a text.
_DEPTHS = {
  'README.md': [4],
  'docs/drafters.md': [4, 6, 8],
  'docs/extending.md': [2, 2],
  'docs/pods.md': [4],
  'docs/verifiers.md': [4],
}


def _blocks(path, language) -> list[str]:
  text = path.read_text(encoding='utf-8')
  return re.findall(rf'```{language}\n(.*?)```', text, flags=re.DOTALL)


@pytest.mark.parametrize(
  'path',
  [
    pytest.param(path, marks=() if path == _README else pytest.mark.extended)
    for path in _TEXTS
    if _blocks(path, 'python')
  ],
  ids=str,
)
def test_python_blocks(path, monkeypatch):
  """Runs the blocks of a text one after the other, in one namespace."""
  monkeypatch.setattr(zoo, 'load', shallow.zoo_load())
  few = dict(itertools.islice(corpora.held_out_library().items(), 2))
  monkeypatch.setattr(corpora, 'held_out_library', lambda: few)
  names, outs = {}, []
  for block in _blocks(path, 'python'):
    exec(compile(block, str(path), 'exec'), names)
    if 'out' in names and names['out'] not in outs:
      outs.append(names['out'])
  depths = [out.num_drafted_per_pos.shape[1] for out in outs]
  assert depths == _DEPTHS.get(path.as_posix(), depths)
  if 'mesh' in names:
    assert names['target'].mesh.size == 4


def _commands(shell: str) -> list[list[str]]:
  """The words of each command, without variables before it."""
  reader = shlex.shlex(
    shell.replace('\\\n', ' '), posix=True, punctuation_chars='&|\n'
  )
  reader.whitespace, reader.whitespace_split = ' ', True
  commands = [[]]
  for word in reader:
    if not word.strip('&|\n'):
      commands.append([])
    elif commands[-1] or not re.match(r'\w+=', word):
      commands[-1].append(word)
  return [command for command in commands if command]


def test_commands(server, tmp_path):
  """Launchers take their flags, configs their arguments and keys."""
  shells = {path: _blocks(path, 'sh') for path in _TEXTS}
  in_docstring = re.compile(r'^ *(python launch/(?:.*\\\n)*.*)', re.MULTILINE)
  for path in _SCRIPTS:
    shells[path] = in_docstring.findall(path.read_text(encoding='utf-8'))
    assert shells[path] or path.name == 'import_weights.py', path
  known = {}
  for path, texts in shells.items():
    for words in (words for text in texts for words in _commands(text)):
      if words[:1] == ['specsamp']:
        launcher = launching.path(words[1])
        known[f'{path}: {shlex.join(words)}'] = [launcher, *words[2:]]
      elif words[:1] == ['python'] and words[1].startswith('launch/'):
        known[f'{path}: {shlex.join(words)}'] = words[1:]
      else:  # set-up, tests and what feeds a launcher
        assert words[0] in {
          '.', 'cat', 'cd', 'curl', 'git', 'kubectl', 'pip', 'pytest',
          'python3.11', 'ruff', 'sbatch', 'sphinx-build',
          'launch/pods/one_gpu.sh', 'launch/pods/tpu_pod.sh',
        }, words  # fmt: skip
  assert len(known) > 40
  found = tmp_path / 'refused.json'
  reading = server.Process(target=launching.read_flags, args=(known, found))
  reading.start()
  reading.join(240)
  assert json.loads(found.read_text()) == {}


def _anchors(path) -> set[str]:
  """Returns the anchors of the headings, in the form of GitHub."""
  text = path.read_text(encoding='utf-8')
  headings = re.findall(r'^#+ (.*)$', text, flags=re.MULTILINE)
  return {
    re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
    for heading in headings
  }


@pytest.mark.parametrize('path', _LINKED, ids=str)
def test_links(path):
  text = path.read_text(encoding='utf-8')
  for link in re.findall(r'\]\(([^)]+)\)', text):
    where, _, anchor = link.partition('#')
    if '://' in where:  # into this repository, or elsewhere: see Sphinx
      here = where.partition('/blob/main/')[2] or '.'
      assert pathlib.Path(here).exists(), link
      continue
    target = path.parent / where if where else path
    assert target.exists(), link
    assert not anchor or anchor in _anchors(target), link


def test_paths_and_extras():
  folders = 'configs|docs|launch|notebooks|specsamp|tests'
  for path in _TEXTS:
    text = path.read_text(encoding='utf-8')
    for name in re.findall(rf'(?<![\w/.:(])(?:{folders})/[\w/.]*\w', text):
      assert pathlib.Path(name).exists() or re.search('PAPER|NAME', name), name
    _check_extras(text)
  for folder in ('specsamp', 'configs', 'launch'):
    for path in pathlib.Path(folder).rglob('*.py'):
      _check_extras(path.read_text(encoding='utf-8'))


def _check_extras(text):
  source = pathlib.Path('setup.py').read_text(encoding='utf-8')
  *_, source = source.partition('extras_require={')
  extras = re.findall(r"^    '(.+)': ", source, re.MULTILINE)
  # With pip 23.2 a name with _ or - installs nothing.
  assert 'hf' in extras and all(name.isalnum() for name in extras), extras
  for names in re.findall(r"'(?:\.|specsamp)\[([\w,-]+)\]'", text):
    assert set(names.split(',')) <= set(extras), names
