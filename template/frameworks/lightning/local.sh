#!/usr/bin/env bash
# Train on this machine{{ ', on all GPUs' if gpus > 1 }}. Options are passed on to the training command:
#   launch/local.sh --model.lr 3e-4
#   PROCESSES=2 launch/local.sh --trainer.accelerator cpu
#   PROCESSES=auto launch/local.sh                  # one process per GPU of this machine
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
python=${PYTHON:-$python}
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
options=()
if [ -n "${PROCESSES:-}" ]; then options=(--trainer.devices "$PROCESSES"); fi

# Lightning starts the other processes itself.
exec "$python" -m {{ package }}.train fit --config configs/default.yaml \
  --trainer.num_nodes 1 ${options[@]+"${options[@]}"} "$@"
