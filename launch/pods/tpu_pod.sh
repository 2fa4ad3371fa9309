#!/usr/bin/env bash
# Runs a launcher on every worker of a Cloud TPU slice, and waits for all.
#
#   launch/pods/tpu_pod.sh NAME ZONE launch/decode.py \
#     --config=configs/quickstart.py --workdir=/mnt/runs/quick --mesh=4x4
#
# --mesh is that of 16 chips. NAME and ZONE are those of the TPU VM (gcloud compute
# tpus tpu-vm list). It
# runs from a machine with gcloud. Beforehand, once: the repository and a virtual
# environment with `pip install -e '.[tpu]'` in the same place on every worker,
# and --workdir on something that all of them mount (Filestore, another NFS, or
# a bucket under gcsfuse): processes write their parts of a checkpoint there.
# jax finds by itself which worker is which process.
set -euo pipefail

# Edit, or set in the environment. Paths are those of the workers.
repository=${REPOSITORY:-specsamp}
python=${PYTHON:-$repository/.venv/bin/python}

if (($# < 3)); then
  echo "usage: $0 NAME ZONE LAUNCHER.py [--flag=value ...]" >&2
  exit 2
fi
name=$1 zone=$2
shift 2

# What a worker runs: who it is, out of the slice's metadata, then the launcher.
read -r -d '' worker <<'END' || true
set -euo pipefail
python=$(realpath -s "$1")
cd "$2"
shift 2
attribute() {
  curl --silent --fail --retry 6 --header 'Metadata-Flavor: Google' \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}
index=$(attribute agent-worker-number)
endpoints=$(attribute worker-network-endpoints)
commas=${endpoints//[^,]/}
echo "process $index of $((${#commas} + 1))"
exec "$python" "$@"
END

# Quoted twice: once for this shell, once for the one that ssh starts.
printf -v command '%q ' bash -c "$worker" worker "$python" "$repository" "$@"
exec gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all \
  --command="$command"
