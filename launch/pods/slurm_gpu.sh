#!/usr/bin/env bash
# Runs a launcher on the GPUs of a Slurm job, with one process for each GPU.
#
#   sbatch --nodes=2 launch/pods/slurm_gpu.sh launch/pretrain.py \
#     --config=configs/pretrain_pycode.py --workdir=/shared/runs/target \
#     --mesh=4x4 --config.batch_size=16
#
# Submit it from the root of the repository. Create a virtual environment with
# `pip install -e '.[gpu]'` once before. Repository, environment and --workdir
# must be on a file system that all nodes mount, because processes write their
# parts of a checkpoint there. jax takes the numbers of the processes from Slurm:
# within a job start launchers by srun only, or they wait for missing tasks.
#
# Edit the GPUs of a node (twice the same number), and the partition and account
# of your cluster. Do not use --gpus-per-task: jax selects the GPU of each task
# among all those of its node, and must see them.
#SBATCH --job-name=specsamp
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --output=slurm-%j.out
# Edit, or set in the environment before sbatch.
python=${PYTHON:-.venv/bin/python}
set -euo pipefail

if (($# < 1)); then
  echo "usage: sbatch $0 LAUNCHER.py [--flag=value ...]" >&2
  exit 2
fi

# The variables belong to the task, not to this script.
# shellcheck disable=SC2016
task='echo "process $SLURM_PROCID of $SLURM_NTASKS"; exec "$@"'
# If one process dies, the others would wait for it.
exec srun --kill-on-bad-exit=1 bash -c "$task" task "$python" "$@"
