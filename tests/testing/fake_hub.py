"""A hub with one repository, on this machine: what huggingface_hub asks for."""

import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = 'org/tiny'


class Hub:
  """What the repository holds, and how it answers.

  Attributes:
    files: name -> content; what ends in .safetensors is kept as LFS has it.
    spoilt: names whose content comes with its bytes turned round.
    is_gated: files are given to nobody.
    is_down: nothing is.
    commit: of the repository; the library keeps what it lists.
    asked: paths of the requests so far, of HEAD and GET.
    url: of the server.
  """

  def __init__(self, files):
    self.files = files
    self.spoilt = set()
    self.is_gated = self.is_down = False
    self.commit = 'a' * 40
    self.asked = []
    self.url = ''

  def downloads(self):
    """Names of the files whose content was asked for since the last call."""
    found = [re.search(r'/resolve/[^/]+/(.*)', each) for each in self.asked]
    self.asked.clear()
    return sorted({each[1] for each in found if each})

  def answer(self, path):
    """(status, headers, body)."""
    path = path.partition('?')[0]
    api = f'/api/models/{NAME}'
    if self.is_down:
      return 503, {}, b''
    if path.startswith(f'{api}/tree/'):
      return _json([_tree(*each) for each in self.files.items()])
    if path in (api, f'{api}/revision/main', f'{api}/revision/{self.commit}'):
      siblings = [_sibling(*each) for each in self.files.items()]
      return _json(dict(id=NAME, sha=self.commit, siblings=siblings))
    if not path.startswith(f'/{NAME}/'):
      known = path.startswith(api)
      missing = 'RevisionNotFound' if known else 'RepoNotFound'
      return 404, {'X-Error-Code': missing}, b''
    if self.is_gated:
      return 403, {'X-Error-Code': 'GatedRepo'}, b''
    name = path.removeprefix(f'/{NAME}/resolve/').partition('/')[2]
    content = self.files[name]
    headers = {
      'X-Repo-Commit': self.commit,
      'ETag': f'"{_hash(name, content)}"',
    }
    return 200, headers, content[:: -1 if name in self.spoilt else 1]


@contextlib.contextmanager
def serving(hub):
  """Serves a hub, or whatever answers, until the block ends."""

  class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
      hub.asked.append(self.path)
      status, headers, body = hub.answer(self.path)
      self.send_response(status)
      for name, value in headers.items():
        self.send_header(name, value)
      self.send_header('Content-Length', str(len(body)))
      self.end_headers()
      if self.command == 'GET':
        self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_):
      pass

  with ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    hub.url = f'http://127.0.0.1:{server.server_port}'
    try:
      yield hub
    finally:
      server.shutdown()
      thread.join()


def _json(value):
  return 200, {'Content-Type': 'application/json'}, json.dumps(value).encode()


def _is_large(name):
  return name.endswith('.safetensors')


def _hash(name, content):
  if _is_large(name):
    return hashlib.sha256(content).hexdigest()
  return hashlib.sha1(b'blob %d\0' % len(content) + content).hexdigest()


def _sibling(name, content):
  found = dict(rfilename=name, size=len(content), blobId=_hash(name, content))
  if _is_large(name):
    lfs = dict(size=len(content), sha256=_hash(name, content), pointerSize=134)
    found |= dict(blobId=40 * '0', lfs=lfs)
  return found


def _tree(name, content):
  found = dict(type='file', path=name, size=len(content))
  found['oid'] = _hash(name, content)
  if _is_large(name):
    lfs = dict(size=len(content), oid=_hash(name, content), pointerSize=134)
    found |= dict(oid=40 * '0', lfs=lfs)
  return found
