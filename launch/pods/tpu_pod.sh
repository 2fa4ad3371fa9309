#!/usr/bin/env bash
# Runs a launcher on every worker of a Cloud TPU slice, and waits for them.
#
#   launch/pods/tpu_pod.sh NAME ZONE launch/decode.py \
#     --config=configs/quickstart.py --workdir=/mnt/runs/quick --mesh=4x4
#
# This --mesh is for 16 chips. NAME and ZONE are those of the TPU VM (gcloud
# compute tpus tpu-vm list). Run it on a machine with gcloud. Put the repository
# and a virtual environment with `pip install -e '.[tpu]'` into the same place on
# every worker once before. --workdir must be on a file system that all workers
# mount (Filestore, another NFS, or a bucket with gcsfuse), because processes
# write their parts of a checkpoint there. jax numbers the workers.
set -euo pipefail

# Edit, or set in the environment. The paths are on the workers.
repository=${REPOSITORY:-specsamp}
python=${PYTHON:-$repository/.venv/bin/python}

if (($# < 3)); then
  echo "usage: $0 NAME ZONE LAUNCHER.py [--flag=value ...]" >&2
  exit 2
fi
name=$1 zone=$2
shift 2

# A worker prints its number, from the metadata of the slice, and runs the
# launcher.
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

# Quoted for the shell that ssh starts.
printf -v command '%q ' bash -c "$worker" worker "$python" "$repository" "$@"
exec gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all \
  --command="$command"
