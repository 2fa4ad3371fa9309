#!/usr/bin/env bash
# Everything that wants one GPU, by one command, in about 25 minutes.
#
#   launch/pods/one_gpu.sh [OUT]
#
# Tests on the GPU, the quickstart, then rounds and passes beside the plan's
# predictions and transformers, without and with loops in CUDA graphs. It wants
# jax with its CUDA plugin, and the packages of setup.py; those that are missing
# it tries to install, without what they need in turn, and nothing else: jax,
# torch and CUDA stay as they are. TRANSFORMERS=False goes on without
# transformers, however the run began.
#
# All is written into OUT (runs/one_gpu) as it comes. A run that was cut off, or
# of which a part failed, goes on when the same command is given again. SMOKE=1
# tries it all with tiny shapes on a CPU. PYTHON names another python3.
set -euo pipefail

if (($# > 1)); then
  echo "usage: $0 [OUT]" >&2
  exit 2
fi
out=$(realpath -m "${1:-runs/one_gpu}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
size='' platform=gpu alone=''
[[ ${TRANSFORMERS:=True} == True ]] || alone=_alone
export JAX_PLATFORMS=cuda,cpu PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if [[ ${SMOKE:-0} != 0 ]]; then
  size=:smoke platform=cpu JAX_PLATFORMS=cpu
fi
export JAX_COMPILATION_CACHE_DIR=$out/cache PYTHONUNBUFFERED=1
mkdir -p "$out"

refuse() {
  echo "one_gpu.sh: $1" >&2
  exit 2
}

# ask ARGUMENTS..: what Python prints; if it fails, the last line of why.
ask() {
  JAX_TRACEBACK_FILTERING=off "$python" "$@" 2>"$out/ask.log" && return
  tail -n 1 "$out/ask.log"
  return 1
}

# lacking: what setup.py requires and is not installed, or not in such a
# version.
look_for_packages() {
  local found
  found=$(missing) || refuse "packages: got $found, expected all of setup.py"
  read -ra lacking <<<"$found"
}
missing() {
  ask - <<'END'
import ast
import importlib.metadata

from packaging.requirements import Requirement

needed = ['pytest']
for node in ast.walk(ast.parse(open('setup.py').read())):
  if isinstance(node, ast.keyword) and node.arg == 'install_requires':
    needed += ast.literal_eval(node.value)
for each in map(Requirement, needed):
  try:
    version = importlib.metadata.version(each.name)
  except importlib.metadata.PackageNotFoundError:
    version = '0'
  if not each.specifier.contains(version, prereleases=True) or version == '0':
    print(each, end=' ')
END
}

look_for_packages
if ((${#lacking[@]})) && [[ " ${lacking[*]}" != *' jax'* ]]; then
  echo "one_gpu.sh: missing ${lacking[*]}; trying to install"
  "$python" -m pip install --quiet --no-deps "${lacking[@]}" || true
  look_for_packages
fi
if ((${#lacking[@]})); then
  refuse "packages: missing ${lacking[*]}, expected all of setup.py"
fi
backend='import jax; print(jax.default_backend())'
found=$(ask -c "$backend") || true
if [[ $found != "$platform" ]]; then
  refuse "device: got ${found:-none}, expected a $platform"
fi

failed=()
# step NAME COMMAND..: runs what has not been done, and goes on if it fails.
step() {
  local name=$1 done=$out/$1${size/:/-}.done began=$SECONDS
  shift
  if [[ -e $done ]]; then
    echo "== $name: done before"
    return
  fi
  echo "== $name"
  if "$@" 2>&1 | tee -a "$out/$name.log"; then
    touch "$done"
  else
    failed+=("$name")
  fi
  echo "== $name: $((SECONDS - began)) s"
}

bench() {
  "$python" launch/benchmarks/bench.py \
    --config=configs/accelerator.py$size --workdir="$out/bench" "$@"
}

# Programs as users run them, and no warning of a new driver's fails a test.
step tests env JAX_DISABLE_MOST_OPTIMIZATIONS=0 \
  "$python" -m pytest -m gpu -rs -W default tests/gpu
# A new folder each time: it begins anew where it was cut off.
step quickstart "$python" launch/decode.py \
  --config=configs/quickstart.py$size \
  --workdir="$out/quickstart-$(date +%Y%m%d-%H%M%S)"
# A step of its own without transformers: what has its time keeps it, and the
# other step still has transformers to time.
step "bench$alone" bench --transformers="$TRANSFORMERS"
step bench_graphs bench --graphs

echo "Reports:"
ls "$out"/quickstart-*/report.md "$out"/bench/report.md 2>/dev/null || true
echo "Logs: $out"
if ((${#failed[@]})); then
  echo "one_gpu.sh: failed: ${failed[*]}; the same command tries them again" >&2
  exit 1
fi
