"""Train PACKAGE with OPTIONS as a rank that joins the others when FOLDER/gone exists.

Each rank writes its process ID to FOLDER before. Rank 1 ignores requests to stop, and rank 0 waits
for it.
"""

import importlib
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

package = importlib.import_module(os.environ["PACKAGE"])
folder = Path(os.environ["FOLDER"])
dist: Any = importlib.import_module("torch.distributed")
rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
sleep = time.sleep
rank = os.environ.get("LOCAL_RANK", "0")


def waiting(join: Any) -> Any:
    """Return a function that joins later."""

    def wait_and_join(*given: Any, **options: Any) -> Any:
        """Join the process group, which may last for half an hour."""
        if rank == "1":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            # a faster clock
            package.errors.time = SimpleNamespace(sleep=lambda seconds: sleep(seconds / 10))
        (folder / f"rank-{rank}").write_text(str(os.getpid()))
        while not (folder / "gone").exists():
            sleep(0.01)
        if rank == "1" and dist.is_torchelastic_launched():
            # so that rank 0 cannot join; without torchrun, rank 0 is the launcher, and gone
            sleep(1000)
        return join(*given, **options)

    return wait_and_join


dist.init_process_group = waiting(dist.init_process_group)
rendezvous.rendezvous = waiting(rendezvous.rendezvous)
importlib.import_module(f"{package.__name__}.train").main()
