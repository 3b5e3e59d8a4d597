"""Find a sleep in the dataset."""

import time
from pathlib import Path

from common import NAME, Project, are_close, expect, losses, replace

MODEL = "mlp"
SHORT = ("--train.steps=10", "--train.eval_every=5", "--log.every=1", "--speed.precision=fp32")
STORAGE = '''\
"""What the storage of the samples needs."""

import time


class Storage:
    """Where samples are."""

    ready_in = 0.002
    """Seconds until a sample can be read."""

    def settle(self, samples: int) -> None:
        """Wait until samples can be read."""
        time.sleep(samples * self.ready_in)
'''
LIMIT_S = 0.3


def prepare(folder: Path) -> None:
    """Plant the sleep."""
    package = folder / "src" / NAME
    (package / "storage.py").write_text(STORAGE, encoding="utf-8")
    data = package / "data.py"
    replace(data, "from .tables import (", "from .storage import Storage\nfrom .tables import (")
    line = "        chosen = torch.as_tensor(indices)\n"
    replace(data, line, line + "        Storage().settle(len(indices))\n")


def check(project: Project) -> None:
    """Measure how long the data set waits, and compare the losses."""
    train_set, _, _ = project.load()
    get_batch = project.module("contracts").whole_batches(train_set)
    start = time.perf_counter()
    start_cpu = time.process_time()
    for _ in range(10):
        if get_batch:
            get_batch(list(range(64)))
        else:
            [train_set[index] for index in range(64)]
    waited = time.perf_counter() - start - (time.process_time() - start_cpu)
    expect(waited < LIMIT_S, f"10 batches wait {waited:.2f} s")
    run = project.train(*SHORT)
    reference = project.reference_run(MODEL, *SHORT)
    same = are_close(losses(run, "train"), losses(reference, "train"))
    expect(same, "the losses are not those of before")
    project.run_tests()
