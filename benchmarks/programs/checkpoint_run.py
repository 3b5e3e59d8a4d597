"""Train the rendered project `proj`, and print as JSON how long its steps take, with and without a save in flight.

python checkpoint_run.py --config configs/default.yaml
"""

import importlib
import json
import sys
import time
from typing import Any


def main() -> None:
    """Train with the options of the command line, and note the time and the state of the save at each step."""
    modules: list[Any] = [importlib.import_module(f"proj.{name}") for name in ("train", "config", "distributed", "run")]
    train, config, distributed, run = modules
    marks: list[tuple[float, bool]] = []
    waits: list[float] = []
    begin_step, save = run.Run.begin_step, run.Run.save

    def mark(self: Any) -> None:
        marks.append((time.perf_counter(), self.saver.thread is not None and self.saver.thread.is_alive()))
        begin_step(self)

    def timed(self: Any) -> None:
        started = time.perf_counter()
        save(self)
        waits.append(time.perf_counter() - started)

    run.Run.begin_step, run.Run.save = mark, timed
    with distributed.start("cpu") as world:
        train.train(config.parse("benchmark", "", sys.argv[1:]), world)
        if world.is_main:
            steps: dict[str, list[float]] = {"alone": [], "in flight": []}
            every = int(next(it for it in sys.argv if it.startswith("--checkpoint.every=")).split("=")[1])
            for number in range(every, len(marks) - 1):  # the first ones are warm-up
                (start, before), (end, after) = marks[number], marks[number + 1]
                if (number + 1) % every and before == after:
                    steps["in flight" if before else "alone"].append(end - start)
            print(json.dumps({"steps": steps, "waits": waits[1:]}))
    distributed.end(world)


if __name__ == "__main__":
    main()
