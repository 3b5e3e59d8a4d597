#!/usr/bin/env bash
# Train on several networked machines. Start it on each machine, with the address of the first one:
#   NODE_RANK=0 MASTER_ADDR=10.0.0.1 launch/multinode.sh {{ frameworks[framework].option }}
#   NODE_RANK=1 MASTER_ADDR=10.0.0.1 launch/multinode.sh {{ frameworks[framework].option }}
# To resume a run, its folder must be on a file system shared by all machines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
python=${PYTHON:-$python}
: "${NODE_RANK:?set NODE_RANK to the index of this machine, starting at 0}"
: "${MASTER_ADDR:?set MASTER_ADDR to the address of machine 0}"

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
nodes=${NODES:-{{ nodes }}} processes=${PROCESSES:-{{ [gpus, 1] | max }}}
exec "$python" -m torch.distributed.run \
  --nnodes "$nodes" --node-rank "$NODE_RANK" --nproc-per-node "$processes" \
  --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}" \
  -m {{ package }}.train {{ frameworks[framework].torchrun }} "$@"
