#!/usr/bin/env bash
# Train on this machine{{ ', with one process per GPU' if gpus > 1 }}. Options are passed on to the training command:
#   launch/local.sh --optim.lr 3e-4
#   PROCESSES=2 launch/local.sh --run.device cpu
#   PROCESSES=auto launch/local.sh                  # one process per GPU of this machine
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
python=${PYTHON:-$python}
processes=${PROCESSES:-{{ [gpus, 1] | max }}}
if [ "$processes" = auto ]; then
  processes=$("$python" -c 'import torch; print(max(torch.accelerator.device_count(), 1))')
fi

launch=()  # one process needs no launcher, and then keeps its exit status
if [ "$processes" != 1 ]; then
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}  # ranks that compete for cores are many times slower
  launch=(-m accelerate.commands.launch --config_file configs/accelerate.yaml --num_processes "$processes")
  launch+=(--num_machines 1 --main_process_port 0)  # 0: a free port
  launch+=(--mixed_precision no)  # speed.precision decides
{%- if [gpus, 1] | max * nodes < 2 %}
  launch+=(--multi_gpu)  # several processes, on CPUs too
{%- endif %}
fi
exec "$python" ${launch[@]+"${launch[@]}"} -m {{ package }}.train --config configs/default.yaml "$@"
