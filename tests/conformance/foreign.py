"""Rules and loops in plain numpy, correct and with errors of released code.

They import nothing of the package. `error` names the planted error; without one
a function is correct.
"""

import numpy as np


def normalize(weights):
  return weights / weights.sum()


def ratio(p, q):
  return min(1.0, p / q) if q > 0 else float(p > 0)


def residual(p, q):
  rest = np.maximum(p - q, 0)
  return normalize(rest) if rest.sum() > 0 else p


def draw(probs, rng):
  return int(rng.choice(len(probs), p=probs))


def inverse_cdf(probs, uniform, error=None):
  cdf = np.cumsum(probs)
  is_past = cdf >= uniform if error == 'u <= cdf' else cdf > uniform
  return int(np.argmax(is_past))


def rounded(array, error):
  if error == 'float16':
    return array.astype(np.float16).astype(float)
  if error == 'bfloat16':
    bits = array.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(float)
  return array


# Rules for chains.


def token_rule(q, p, tokens, rng, error=None):
  """Chen et al. 2302.01318."""
  q = rounded(q, error)
  if error == 'float32':  # which is not an error
    q, p = q.astype(np.float32), p.astype(np.float32)
  for i, x in enumerate(tokens):
    u = rng.random()
    a = ratio(p[i, x], q[i, x])
    if error == 'accepts all':
      a = 1
    if error == 'inverted':
      a = min(1, q[i, x] / p[i, x])
    if error == 'typical':
      a = p[i, x] > 0.2
    if not (u <= a if error == 'u <= a' else u < a):
      rest = p[i] if error == 'no residual' else residual(p[i], q[i])
      if error == 'inverted residual':
        rest = normalize(p[i] * (1 - q[i]))
      if error == 'u <= cdf':
        return [*tokens[:i], inverse_cdf(rest, rng.random(), error)]
      if error == 'shared with residual':
        return [*tokens[:i], inverse_cdf(rest, u)]
      return [*tokens[:i], draw(rest, rng)]
  if error == 'bonus of the last row':
    return [*tokens, draw(p[-2], rng)]
  if error == 'bonus is the argmax':
    return [*tokens, p[-1].argmax()]
  return [*tokens, draw(p[-1], rng)]


def block_rule(q, p, tokens, rng, error=None):
  """Sun et al. 2403.10444; with 'uncapped' HSD, 2601.05724."""
  product, weights = 1.0, [1.0]
  for i, x in enumerate(tokens):
    product *= p[i, x] / q[i, x]
    weights.append(min(1.0, product))
    if error != 'uncapped':
      product = weights[-1]
  stop = len(tokens)
  while stop:
    h = weights[stop]
    if stop < len(tokens):
      mass = np.maximum(h * p[stop] - q[stop], 0).sum()
      h = mass / (mass + 1 - h) if mass + 1 - h > 0 else 1.0
    if rng.random() < h:
      break
    stop -= 1
  if stop == len(tokens):
    return [*tokens, draw(p[-1], rng)]
  rest = residual(weights[stop] * p[stop], q[stop])
  return [*tokens[:stop], draw(rest, rng)]


def chain(rule):
  """Returns a rule for trees as a rule for chains."""
  return lambda q, p, tokens, rng, **options: rule(
    q, p, tokens, range(len(tokens)), rng, **options
  )


# Rules for trees.


def descend(step, q, p, tokens, parents, rng):
  """Goes down; `step` returns an accepted child, or None and a token."""
  node, emitted = 0, []
  while True:
    children = [i for i, parent in enumerate(parents) if parent == node]
    child, token = step(children, q, p[node], tokens, rng)
    if child is None:
      return [*emitted, token]
    node = child + 1
    emitted.append(tokens[child])


def recursive_rejection(q, p, tokens, parents, rng, error=None, iid=False):
  """Yang et al. 2401.06706, algorithms 1 and 2."""

  def step(children, q, left, tokens, rng):
    for rank, child in enumerate(children):
      if rank == 0 or iid:
        q_left = q[child]
      x = tokens[child]
      if rng.random() < ratio(left[x], q_left[x]):
        return child, None
      left = residual(left, q_left)
      q_left = normalize(np.where(np.arange(len(q_left)) == x, 0, q_left))
    return None, draw(left, rng)

  return descend(step, q, p, tokens, parents, rng)


def sample_and_match(q, p, tokens, parents, rng, error=None):
  """DFlash, DDTree, JetSpec; with 'argmax' BASTION, 2605.29727."""

  def step(children, q, p, tokens, rng):
    target = int(p.argmax()) if error == 'argmax' else draw(p, rng)
    for child in children:
      if tokens[child] == target:
        return child, None
    return None, draw(p, rng) if error in ('argmax', 'redraws') else target

  return descend(step, q, p, tokens, parents, rng)


def k_seq(q, p, tokens, parents, rng, error=None):
  """Sun et al. 2310.15141."""

  def step(children, q, p, tokens, rng):
    if not children:
      return None, draw(p, rng)
    q, count = q[children[0]], len(children)
    beta = lambda rho: np.minimum(q, p / rho).sum()
    low, high = 1.0, float(count)
    for _ in range(60):
      rho = (low + high) / 2
      if 1 - (1 - beta(rho)) ** count <= rho * beta(rho):
        high = rho
      else:
        low = rho
    b = beta(high)
    for child in children:
      x = tokens[child]
      if rng.random() < min(1, p[x] / (high * q[x])):
        return child, None
    if error == 'no residual':
      return None, draw(p, rng)
    tries = (1 - (1 - b) ** count) / b if b > 1e-9 else count
    return None, draw(residual(p, np.minimum(q, p / high) * tries), rng)

  return descend(step, q, p, tokens, parents, rng)


# Loops.


def softmax(logits):
  return normalize(np.exp(logits - logits.max()))


def probs_of(logits, request, error=None):
  """Returns probabilities after temperature, top-k and top-p."""
  temperature = request.temperature
  if temperature == 0:
    if error == 'greedy rows':
      temperature = 1.0
    else:
      return np.eye(len(logits))[logits.argmax()]
  if error == 'top-p first':
    logits = nucleus(logits, request.top_p)
  logits = logits / temperature
  if request.top_k and error != 'no top-k':
    kth = np.sort(logits)[-request.top_k]
    logits = np.where(logits < kth, -np.inf, logits)
  if error != 'top-p first':
    logits = nucleus(logits, request.top_p)
  return softmax(logits)


def nucleus(logits, top_p):
  probs = softmax(logits)
  order = np.argsort(-probs, kind='stable')
  before = np.cumsum(probs[order]) - probs[order]
  logits = logits.copy()
  logits[order[before >= top_p]] = -np.inf
  return logits


def decode(
  draft_logits, target_logits, requests, rng, rule=token_rule, error=None
):
  """Decodes the rows of a batch one after the other."""
  rows = []
  if error == 'one stream':
    rng = Repeated(rng)
  for request in requests:
    if error == 'one stream':
      rng.restart()
    rows.append(
      decode_row(draft_logits, target_logits, request, rng, rule, error)
    )
  return rows


class Repeated:
  """Generator that returns the same numbers after each restart."""

  def __init__(self, rng):
    self.rng, self.numbers = rng, []

  def restart(self):
    self.next = 0

  def random(self):
    if self.next == len(self.numbers):
      self.numbers.append(self.rng.random())
    self.next += 1
    return self.numbers[self.next - 1]

  def choice(self, size, p):
    return inverse_cdf(p, self.random())


def decode_row(draft_logits, target_logits, request, rng, rule, error):
  prompt, tokens, num_steps = list(request.prompt), [], 0
  cache = list(prompt)  # tokens that the target has read
  length = request.draft_len
  while len(tokens) < request.max_tokens:
    text = prompt + tokens
    draft, q_rows, uniforms = [], [], []
    for _ in range(length):
      logits = draft_logits(text + draft)
      q_rows.append(probs_of(logits, request))
      drawn = probs_of(rounded(logits, error), request)
      if error == 'draft temperature' and request.temperature:
        drawn = softmax(logits)
      if error == 'top-k as sampled':
        draft.append(int(drawn.argmax()))
      elif error == 'shared bits':
        uniforms.append(rng.random())
        draft.append(inverse_cdf(drawn, uniforms[-1]))
      else:
        draft.append(draw(drawn, rng))
    known = text if error != 'cache' else cache[: len(text)]
    p_rows = [
      probs_of(target_logits(known + draft[:i]), request, error)
      for i in range(length + 1)
    ]
    cache += draft if error == 'cache' else []
    args = np.stack(q_rows), np.stack(p_rows), np.array(draft)
    if error == 'cache miss' and num_steps == 0:
      step = chain(sample_and_match)(*args, rng, error='argmax')
    elif error == 'shared bits':
      step = token_rule_of(*args, rng, uniforms)
    else:
      step = rule(*args, rng)
    num_steps += 1
    if error == 'cache':  # a token is appended, but rejected ones stay
      cache.append(int(step[-1]))
    tokens += [int(token) for token in step]
    if error == 'stop is the last token':
      if tokens[-1] == request.eos:
        break
    elif request.eos in tokens:
      tokens = tokens[: tokens.index(request.eos) + 1]
      break
  limit = request.max_tokens - (error == 'too short')
  return tokens if error == 'no limit' else tokens[:limit]


def token_rule_of(q, p, tokens, rng, uniforms):
  """The token rule, with the draft's uniform numbers for the residual."""
  for i, x in enumerate(tokens):
    if not rng.random() < ratio(p[i, x], q[i, x]):
      return [*tokens[:i], inverse_cdf(residual(p[i], q[i]), uniforms[i])]
  return [*tokens, draw(p[-1], rng)]


def decode_in_step(draft_logits, target_logits, requests, rng, error=None):
  """Decodes a batch whose rows draft and verify together."""
  rows = [[] for _ in requests]
  is_done = lambda i: len(rows[i]) >= requests[i].max_tokens
  while not all(is_done(i) for i in range(len(rows))):
    steps, p_of_rows = [], []
    for row, request in zip(rows, requests, strict=True):
      text, draft, q_rows = [*request.prompt, *row], [], []
      for _ in range(request.draft_len):
        q_rows.append(probs_of(draft_logits(text + draft), request))
        draft.append(draw(q_rows[-1], rng))
      p_rows = [
        probs_of(target_logits(text + draft[:i]), request)
        for i in range(len(draft) + 1)
      ]
      p_of_rows.append(p_rows)
      args = np.stack(q_rows), np.stack(p_rows), np.array(draft)
      steps.append([int(token) for token in token_rule(*args, rng)])
    least = min(map(len, steps)) - 1
    for i, step in enumerate(steps):
      if error == 'minimum' and len(step) > least + 1:
        step = [*step[:least], draw(p_of_rows[i][least], rng)]
      if not is_done(i):
        rows[i] += step
  for row, request in zip(rows, requests, strict=True):
    del row[request.max_tokens :]
    if request.eos in row:
      del row[row.index(request.eos) + 1 :]
  return rows
