#!/usr/bin/env bash
# Train on several networked machines. Start the same command on each, with the address of one of them:
#   RUN_NAME=first MASTER_ADDR=10.0.0.1 launch/multinode.sh {{ frameworks[framework].option }}
#   NODES=2:4 RUN_NAME=first MASTER_ADDR=10.0.0.1 launch/multinode.sh    # 2 to 4 machines, which can join and leave
# If a process or a machine fails, all processes start again and resume the run, RESTARTS times at most (3).
# A machine that failed joins again by the same command. All machines must share the folder of the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
python=${PYTHON:-$python}
: "${RUN_NAME:?set RUN_NAME to the name of the run, the same on all machines}"
: "${MASTER_ADDR:?set MASTER_ADDR to the address of the machine that the others join}"
nodes=${NODES:-{{ nodes }}} processes=${PROCESSES:-{{ [gpus, 1] | max }}} name=$RUN_NAME
if ! [[ $nodes/$processes =~ ^[1-9][0-9]*(:[1-9][0-9]*)?/[1-9][0-9]*$ ]]; then
  echo "error: NODES is '$nodes' and PROCESSES is '$processes': use numbers from 1, or MIN:MAX for NODES" >&2
  exit 2
fi

threads=$(($(nproc) / processes))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 1 ? threads : 1))}
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # else restarts of gloo ranks often hang
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=90  # seconds to save a checkpoint after SIGTERM; torchrun reads it since 2.13

# Checks this machine and what the first one trains. Then it is torchrun, which passes signals on to the processes.
exec "$python" - "$MASTER_ADDR" "${MASTER_PORT:-29400}" "$nodes" "$processes" "$name" \
  {{ package }}.train {{ frameworks[framework].torchrun }} {{ frameworks[framework].named }} "$@" << 'END'
import errno, hashlib, json, os, socket, sys, threading, time
from pathlib import Path
os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # else a failed connection prints a C++ stack
import torch
from torch.distributed import TCPStore, run

def stop(problem):
    raise SystemExit(f"error: {problem}")

def digest(files):
    return hashlib.sha256(b"".join(f"{file}\n".encode() + file.read_bytes() for file in sorted(files))).hexdigest()

host, port, nodes, processes, name, *command = sys.argv[1:]
gpus = torch.accelerator.device_count()
if int(processes) > gpus {{ '> 0 ' if gpus == 0 }}and not any(word.split("=")[-1] == "cpu" for word in command):
    stop(f"PROCESSES is {processes}, but torch finds {gpus} GPUs on this machine")
own = ""  # the address by which the other machines know this one
try:
    with socket.create_server((host, int(port))):  # possible on the first machine only
        own = host
except OSError as error:
    if error.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
        stop(f"{host}:{port}: {error.strerror}: set MASTER_ADDR and MASTER_PORT")
first, end = bool(own), time.monotonic() + float(os.environ.get("WAIT", "300"))
while not own:
    try:
        own = socket.create_connection((host, int(port)), timeout=5).getsockname()[0]
    except OSError as error:
        if time.monotonic() > end:
            stop(f"{host}:{port} does not answer ({error}): start this command there too, or set WAIT to more seconds")
        time.sleep(1)
job = {"src": digest(Path("src").rglob("*.py")), "configs": digest(Path("configs").glob("*"))}
job |= {"options": command, "NODES": nodes, "torch": torch.__version__}
theirs = []
def share():
    store = TCPStore(host, int(port), is_master=False)  # torchrun starts it on the first machine
    store.set("job", json.dumps(job)) if first else theirs.append(json.loads(store.get("job")))
threading.excepthook = lambda _: None
(shared := threading.Thread(target=share, daemon=True)).start()
if not first:
    shared.join(15)  # seconds
    if not theirs:
        stop(f"another program uses {host}:{port}: set MASTER_PORT to the same free port on all machines")
    if differs := [key for key in job if job[key] != theirs[0].get(key)]:
        stop(f"{' and '.join(differs)} here and on {host} differ: use the same commit and command on all machines")
del os.environ["TORCH_CPP_LOG_LEVEL"]
run.main(["--nnodes", nodes, "--nproc-per-node", processes, "--max-restarts", os.environ.get("RESTARTS", "3"),
          "--rdzv-backend", "c10d", "--rdzv-id", name, "--rdzv-endpoint", f"{host}:{port}", "--local-addr", own,
          "--rdzv-conf", f"is_host={int(first)}", "--log-dir", f"runs/{name}/logs/{socket.gethostname()}",
          "--tee", "3", "-m", *command])
END
