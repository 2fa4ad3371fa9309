#!/usr/bin/env bash
# Runs a launcher on the GPUs of a Slurm job, a process for each GPU.
#
#   sbatch --nodes=2 launch/pods/slurm_gpu.sh launch/pretrain.py \
#     --config=configs/pretrain_pycode.py --workdir=/shared/runs/target \
#     --mesh=4x4 --config.batch_size=16
#
# Submitted from the repository's root. Beforehand, once: a virtual environment
# with `pip install -e '.[gpu]'`. Repository, environment and --workdir must be on
# a file system that all nodes mount: processes write their parts of a
# checkpoint there. jax finds by itself which task is which process; so within
# a job start launchers by srun only, or they wait for tasks that never come.
#
# Edit: GPUs of a node, twice the same number; partition and account as your
# cluster wants them. Not --gpus-per-task: jax picks each task's GPU out of all
# those of its node, and must see them.
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

# The variables are those of the task, not of this script.
# shellcheck disable=SC2016
task='echo "process $SLURM_PROCID of $SLURM_NTASKS"; exec "$@"'
# If one process dies the others could only wait for it.
exec srun --kill-on-bad-exit=1 bash -c "$task" task "$python" "$@"
