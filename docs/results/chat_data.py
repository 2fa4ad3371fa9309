r"""Writes questions for a chat model, and answers, from three dictionaries.

Debian's packages have the words and the texts:

  apt-get download dict-wn dict-foldoc dict-jargon
  for package in *.deb; do dpkg -x $package .; done
  python docs/results/chat_data.py questions usr/share/dictd 8000 \
    MODELS/smollm2-135m > questions.txt
  python docs/results/chat_data.py texts usr/share/dictd 2000 > texts.jsonl

`launch/dialogues.py --config.questions=questions.txt` answers the questions.
The texts are conversations for `launch/distill.py`, which need no target.
"""

import gzip
import itertools
import json
import pathlib
import random
import re
import sys

import specsamp

_ON_A_NOUN = """\
Explain {a} to a child of ten years.
What is {a}, and why does it matter?
Write a short story in which {a} and {b} play a part.
Compare {a} with {b}.
Give me five tips about {a}.
Write a poem about {a}.
List three advantages and three disadvantages of {a}.
How has {a} changed over the last hundred years?
Write an email to a colleague about {a}.
Describe how {a} and {b} are related.
What should I know about {a} before I travel?
Who first wrote about {a}, and what is known about it?
Write a dialogue between a teacher and a student on {a}.
What are common mistakes that people make with {a}?
Explain step by step how one can learn more about {a}.
Give a definition of {a} and use it in two sentences.
Imagine that {a} did not exist. How would daily life change?
Write the opening paragraph of a blog post on {a} and {b}.
Which facts about {a} surprise most people?
Can you recommend a book or a film about {a}? Say why.
Write a product description for a {a}.
You are a scientist. Describe an experiment on {a} in detail.
What is the difference between {a} and {b}?
Write a Python function that has to do with {a}.
Argue for and against this statement: {a} is more important than {b}.
Sort these words by how often you think people use them: {a}, {b}, {c}.
Tell me about the history of {a} in Europe.
Write a recipe whose name has the word {a} in it.
What causes problems with {a}, and how are they solved?
Draft a speech on {a} for a school.
Classify these as living or not living: {a}, {b}, {c}. Explain.
Who, what, where, when: write a news report about {a}.
""".splitlines()
_ON_A_PASSAGE = """\
Summarize this text in one sentence: {text}
Summarize: {text}
Rewrite this text in simpler words: {text}
{text} Question: what is {word}?
Use only this text to answer. {text} What is {word} used for?
What are the main points of this text? {text}
""".splitlines()
_SUMS = """\
{n} has {x} {a}s and buys {y} more. Then {n} gives {z} away. How many are left?
A shop sells {a}s for {x} dollars each. How much do {y} of them cost?
{n} walks {x} kilometres a day. How far does {n} walk in {y} days?
There are {x} boxes with {y} {a}s each. {z} are broken. How many are good?
Find x if {z}x + {y} = {x}. Show your work.
A train travels {x} miles in {z} hours. What is its average speed?
{n} is {y} years old, and {m} is {z} years older. How old are they together?
What is {z} percent of {x}? Explain each step.
""".splitlines()
# Subjects, verbs, places and infinitives of German sentences.
_GERMAN = """\
Der Lehrer|Meine Schwester|Die Regierung|Ein alter Mann|Das Kind|Die \
Nachbarin|Der Hund|Unser Zug|Die junge Frau|Der Minister
hat gestern|wird morgen|sollte|wollte im Sommer|kann heute|musste lange
in Berlin|in der Schule|mit den Freunden|im Garten|am Bahnhof|ohne Geld|in \
einem kleinen Dorf|auf dem Markt
warten|arbeiten|ein Buch lesen|die Zeitung kaufen|essen|schlafen|eine Antwort \
geben|bleiben
"""
_NAMES = """\
Anna Ben Clara David Emma Farid Grace Hugo Ines James Kim Liam
"""
_WHAT_IS = """\
What is {word}?
Explain the term "{word}".
What does {word} mean?
Tell me about {word}.
""".splitlines()


def _read(path: pathlib.Path) -> str:
  with gzip.open(path, 'rt', encoding='utf-8') as file:
    return file.read()


def nouns(path: pathlib.Path, tokenizer) -> list[str]:
  """Returns WordNet's nouns that are one token, the frequent ones."""
  lines = _read(path).split('\n')
  words = {
    word
    for word, entry in itertools.pairwise(lines)
    if re.fullmatch('[a-z]{4,}', word) and entry.startswith('    n ')
  }
  is_frequent = lambda word: len(tokenizer.encode(f' {word}', bos=False)) == 1
  return sorted(filter(is_frequent, words))


def passages(path: pathlib.Path) -> list[tuple[str, str]]:
  """Returns the words of a dictionary, each with a text on one line."""
  entries = []
  for entry in re.split(r'\n(?=\S)', _read(path)):
    word, _, body = entry.partition('\n')
    body = re.sub(r'<[^>]*>|[{}]|\([\d-]*\)', '', body)
    body = re.sub(r'\s+', ' ', body).strip()
    cut = body[: body.rfind('. ', 0, 700) + 1]
    if len(cut) > 160:
      entries.append((word, cut))
  return entries


def questions(folder: pathlib.Path, count: str, model: str):
  """Prints questions, one on each line."""
  rng = random.Random(0)
  words = nouns(folder / 'wn.dict.dz', specsamp.load(model).tokenizer)
  texts = passages(folder / 'foldoc.dict.dz')
  names = _NAMES.split()
  german = [line.split('|') for line in _GERMAN.splitlines()]
  for _ in range(int(count)):
    a, b, c = rng.sample(words, 3)
    word, text = rng.choice(texts)
    n, m = rng.sample(names, 2)
    x, y, z = rng.randint(20, 400), rng.randint(3, 40), rng.randint(2, 9)
    values = dict(a=a, b=b, c=c, word=word, text=text, n=n, m=m, x=x, y=y, z=z)
    kind = rng.random()
    if kind < 0.65:
      line = rng.choice(_ON_A_NOUN)
    elif kind < 0.82:
      line = rng.choice(_ON_A_PASSAGE)
    elif kind < 0.94:
      line = rng.choice(_SUMS)
    else:
      sentences = [' '.join(map(rng.choice, german)) for _ in range(3)]
      line = f'Translate German to English: {". ".join(sentences)}.'
    print(line.format(**values))


def texts(folder: pathlib.Path, count: str):
  """Prints conversations whose answers are entries of dictionaries."""
  rng = random.Random(0)
  entries = [
    entry
    for name in ('foldoc', 'jargon')
    for entry in passages(folder / f'{name}.dict.dz')
  ]
  for word, text in rng.sample(entries, int(count)):
    question = rng.choice(_WHAT_IS).format(word=word)
    turns = zip(('user', 'assistant'), (question, text), strict=True)
    messages = [dict(role=role, content=content) for role, content in turns]
    print(json.dumps({'messages': messages}))


if __name__ == '__main__':
  command, folder, *arguments = sys.argv[1:]
  dict(questions=questions, texts=texts)[command](
    pathlib.Path(folder), *arguments
  )
