#!/usr/bin/env bash
# Train on this machine{{ ', with one process per GPU' if gpus > 1 }}. Options are passed on to the training command:
#   launch/local.sh --optim.lr 3e-4
#   PROCESSES=2 launch/local.sh --run.device cpu
#   PROCESSES=auto launch/local.sh                  # one process per GPU of this machine
#   RESTARTS=3 launch/local.sh                      # if a process fails, all start again and resume, 3 times at most
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
python=${PYTHON:-$python}
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
processes=${PROCESSES:-{{ [gpus, 1] | max }}}

launch=()  # one process needs no launcher, and then keeps its exit status
named=()
if [ "$processes" != 1 ]; then
  gpus=$("$python" -c 'import torch; print(torch.accelerator.device_count())')
  if [ "$processes" = auto ]; then processes=$((gpus > 1 ? gpus : 1)); fi
  if ! [[ $processes =~ ^[1-9][0-9]*$ ]]; then
    echo "error: PROCESSES is '$processes': use auto, or a number from 1" >&2
    exit 2
  fi
  if [ "$processes" -gt $((gpus > 1 ? gpus : 1)) ] && [{{ ' "$gpus" != 0 ] && [' if gpus == 0 }}[ "$* " != *[=\ ]cpu\ * ]]; then
    echo "error: $processes processes need $processes GPUs, but torch finds $gpus: use PROCESSES=auto, or --run.device cpu" >&2
    exit 2
  fi
fi
if [ "$processes" != 1 ]; then
  # a name that is fixed here, so that a restart resumes the run, unless the config or an option has one
  name=$(awk '{ sub(/ #.*/, ""); gsub(/["\047]/, "") } /^[^ #]/ { section = $1 }
    section == "run:" && $1 == "name:" && $2 != "null" { print $2 }' configs/default.yaml)
  name=${name:-$(date +%Y-%m-%d-%H-%M-%S)}
  if [[ " $* " =~ \ --run\.name[=\ ]([^\ ]+) ]]; then name=${BASH_REMATCH[1]}; fi
  threads=$(($(nproc 2> /dev/null || getconf _NPROCESSORS_ONLN) / processes))  # ranks that compete for cores are many times slower
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 1 ? threads : 1))}
  RUN_STARTED=$(date +%s)
  export RUN_STARTED  # run.hours counts from here, also after a restart
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # else restarts of gloo ranks often hang
  export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=90  # seconds to save a checkpoint after SIGTERM; torchrun reads it since 2.13
  printf -v logged '%s:3,' $(seq 1 $((processes - 1)))  # process 0 has the console; the others also have log files
{%- block launch %}
  launch=(-m torch.distributed.run --standalone --nproc-per-node "$processes" --max-restarts "${RESTARTS:-0}"
    --log-dir "runs/$name/logs" --tee "${logged%,}")
{%- endblock %}
  named=(--run.name "$name")
fi
exec "$python" ${launch[@]+"${launch[@]}"} -m {{ package }}.train ${named[@]+"${named[@]}"} --config configs/default.yaml "$@"
