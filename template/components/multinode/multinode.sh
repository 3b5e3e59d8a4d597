#!/usr/bin/env bash
# Train on several networked machines. Start the same command on each, with the address of one of them:
#   RUN_NAME=first MASTER_ADDR=10.0.0.1 launch/multinode.sh {{ frameworks[framework].option }}
# NODES=2:4 is for 2 to 4 machines, which can join and leave; set train.global_batch_size, so that it stays the same.
# If a process or a machine fails, all processes start again and resume the run, RESTARTS times at most (3).
# A machine that failed joins again by the same command. All machines must share the folder of the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
python=${PYTHON:-$python}
: "${RUN_NAME:?set RUN_NAME to the name of the run, the same on all machines}"
: "${MASTER_ADDR:?set MASTER_ADDR to the address of the machine that the others join}"
port=${MASTER_PORT:-29400} name=$RUN_NAME
nodes=${NODES:-{{ nodes }}} processes=${PROCESSES:-{{ [gpus, 1] | max }}}
if ! [[ $nodes/$processes =~ ^[1-9][0-9]*(:[1-9][0-9]*)?/[1-9][0-9]*$ ]]; then
  echo "error: NODES is '$nodes' and PROCESSES is '$processes': use numbers from 1, or MIN:MAX for NODES" >&2
  exit 2
fi

threads=$(($(nproc) / processes))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 1 ? threads : 1))}
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
RUN_STARTED=$(date +%s)
export RUN_STARTED  # run.hours counts from here, also after a restart
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # else restarts of gloo ranks often hang
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=90  # seconds to save a checkpoint after SIGTERM; torchrun reads it since 2.13

# Whether this is the first machine, and the address by which the others know it: torchrun takes both from
# the host's name, which is often that of another network.
found=$("$python" -c '
import socket, sys
place = sys.argv[1], int(sys.argv[2])
try:
    socket.create_server(place)  # possible on the first machine only
    print(1, place[0])
except OSError:
    probe = socket.socket(type=socket.SOCK_DGRAM)
    try:
        probe.connect(place)  # sends nothing
    except OSError as error:
        sys.exit(f"error: there is no way to MASTER_ADDR {place[0]}: {error}")
    print(0, probe.getsockname()[0])
' "$MASTER_ADDR" "$port")
read -r is_host address <<< "$found"

# The others wait for it.
until [ "$is_host" = 1 ] || (: < "/dev/tcp/$MASTER_ADDR/$port") 2> /dev/null; do
  if [ "$SECONDS" -ge "${WAIT:-300}" ]; then
    echo "error: $MASTER_ADDR:$port does not answer: start this command there too, or set WAIT to more seconds" >&2
    exit 1
  fi
  sleep 1
done

exec "$python" -m torch.distributed.run --nnodes "$nodes" --nproc-per-node "$processes" --max-restarts "${RESTARTS:-3}" \
  --rdzv-backend c10d --rdzv-id "$name" --rdzv-endpoint "$MASTER_ADDR:$port" \
  --rdzv-conf "is_host=$is_host" --local-addr "$address" --log-dir "runs/$name/logs/$(hostname)" --tee 3 \
  -m {{ package }}.train {{ frameworks[framework].torchrun }} {{ frameworks[framework].named }} "$@"
