"""A hub with one repository on this machine, for huggingface_hub's requests."""

import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = 'org/tiny'


class Hub:
  """The repository and its answers.

  Attributes:
    files: name -> content; names that end in .safetensors or .gguf are LFS
      files.
    spoilt: names whose content is sent with its bytes reversed.
    is_gated: True if nobody may download files.
    is_down: True if every request fails.
    commit: of the repository; huggingface_hub caches the list of its files.
    asked: paths of the HEAD and GET requests so far.
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
    """Returns the names of files requested since the last call."""
    matches = [re.search(r'/resolve/[^/]+/(.*)', path) for path in self.asked]
    self.asked.clear()
    return sorted({match[1] for match in matches if match})

  def answer(self, path):
    """Returns (status, headers, body)."""
    path = path.partition('?')[0]
    api = f'/api/models/{NAME}'
    if self.is_down:
      return 503, {}, b''
    if path.startswith(f'{api}/tree/'):
      return _json([_entry(*item) for item in self.files.items()])
    if path in (api, f'{api}/revision/main', f'{api}/revision/{self.commit}'):
      siblings = [{'rfilename': name} for name in self.files]
      return _json(dict(id=NAME, sha=self.commit, siblings=siblings))
    if not path.startswith(f'/{NAME}/'):
      is_known = path.startswith(api)
      missing = 'RevisionNotFound' if is_known else 'RepoNotFound'
      return 404, {'X-Error-Code': missing}, b''
    if self.is_gated:
      return 403, {'X-Error-Code': 'GatedRepo'}, b''
    name = path.removeprefix(f'/{NAME}/resolve/').partition('/')[2]
    if name not in self.files:
      return 404, {'X-Error-Code': 'EntryNotFound'}, b''
    content = self.files[name]
    headers = {
      'X-Repo-Commit': self.commit,
      'ETag': f'"{_hash(name, content)}"',
    }
    return 200, headers, content[:: -1 if name in self.spoilt else 1]


@contextlib.contextmanager
def serving(hub):
  """Serves a hub, or another object with `answer`, until the block ends."""

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
  return name.endswith(('.safetensors', '.gguf'))


def _hash(name, content):
  if _is_large(name):
    return hashlib.sha256(content).hexdigest()
  return hashlib.sha1(b'blob %d\0' % len(content) + content).hexdigest()


def _entry(name, content):
  entry = dict(type='file', path=name, size=len(content))
  entry['oid'] = _hash(name, content)
  if _is_large(name):
    lfs = dict(size=len(content), oid=_hash(name, content), pointerSize=134)
    entry |= dict(oid=40 * '0', lfs=lfs)
  return entry
