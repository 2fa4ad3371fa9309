#!/usr/bin/env bash
# Runs everything that needs one GPU, in about 25 minutes.
#
#   launch/pods/one_gpu.sh [OUT]
#
# It runs the tests on the GPU, the quickstart, and the benchmark of rounds and
# passes, next to the plan's predictions and transformers, without and with loops
# in CUDA graphs. It needs jax with its CUDA plugin and the packages of setup.py.
# It tries to install missing packages, without their own requirements: jax,
# torch and CUDA stay as they are. TRANSFORMERS=False continues without
# transformers.
#
# Everything is written into OUT (runs/one_gpu) as it comes. The same command
# resumes an interrupted run, and repeats parts that failed. SMOKE=1 runs tiny
# shapes on a CPU. PYTHON names another python3.
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

# Prints the requirements of setup.py that are not installed in this version.
missing() {
  "$python" - <<'END'
import ast
import importlib.metadata

from packaging.requirements import Requirement

needed = ['pytest']
for node in ast.walk(ast.parse(open('setup.py').read())):
  if isinstance(node, ast.keyword) and node.arg == 'install_requires':
    needed += ast.literal_eval(node.value)
for requirement in map(Requirement, needed):
  try:
    version = importlib.metadata.version(requirement.name)
  except importlib.metadata.PackageNotFoundError:
    version = '0'
  if version == '0' or not requirement.specifier.contains(version, True):
    print(requirement, end=' ')
END
}

read -ra lacking <<<"$(missing)"
if ((${#lacking[@]})) && [[ " ${lacking[*]}" != *' jax'* ]]; then
  echo "one_gpu.sh: missing ${lacking[*]}; trying to install"
  "$python" -m pip install --quiet --no-deps "${lacking[@]}" || true
  read -ra lacking <<<"$(missing)"
fi
if ((${#lacking[@]})); then
  refuse "packages: missing ${lacking[*]}, expected all of setup.py"
fi
backend=$("$python" -c 'import jax; print(jax.default_backend())') || true
[[ $backend == "$platform" ]] ||
  refuse "device: got ${backend:-an error}, expected a $platform"

failed=()
# step NAME COMMAND..: runs a command that has not succeeded yet.
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

# Programs are compiled as for users, and a warning of a new driver is no error.
step tests env JAX_DISABLE_MOST_OPTIMIZATIONS=0 \
  "$python" -m pytest -m gpu -rs -W default tests/gpu
# It does not resume, and gets a new folder each time.
step quickstart "$python" launch/decode.py \
  --config=configs/quickstart.py$size \
  --workdir="$out/quickstart-$(date +%Y%m%d-%H%M%S)"
# Without transformers it is another step, so that a later run with transformers
# still times them. Times that exist are kept.
step "bench$alone" bench --transformers="$TRANSFORMERS"
step bench_graphs bench --graphs

echo "Reports:"
ls "$out"/quickstart-*/report.md "$out"/bench/report.md 2>/dev/null || true
echo "Logs: $out"
if ((${#failed[@]})); then
  echo "one_gpu.sh: failed: ${failed[*]}; the same command tries them again" >&2
  exit 1
fi
