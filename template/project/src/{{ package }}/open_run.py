"""Opens a run: builds it, resumes it, and closes what it has opened; and the program around it."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from . import data, distributed, faults, log, run_folder, speed, techniques
from .config import Config, parse
from .console import Console, shown
from .distributed import World
from .errors import UserError, short_warnings
from .faults import disk_space, heartbeat, samples
from .faults.stop import Requests
from .hooks import Hook
from .loaders import Loader, TrainOrder
from .parts import build
from .progress import Progress
from .run import Run
from .run_lock import Opened


@contextmanager
def open_run(cfg: Config, world: World, hooks: Iterable[Hook] = ()) -> Iterator[Run]:
    """Build a run with `hooks` of yours, or resume one from its checkpoint, and keep its log open while it trains.

    Raises:
        UserError: the config does not fit the data, the machine or the checkpoint.
    """
    log.check(cfg.log, world.is_main)
    with Opened() as opened:
        cores = opened.enter_context(techniques.own_cores(cfg.run, world))
        parts = build(faults.smaller_batches(cfg, world), world, hooks)
        progress = Progress.start(cfg, parts.plan.total_steps, parts.plan.steps_per_epoch)
        folder, resumed = run_folder.locate(cfg, parts.identity, world, techniques.find_checkpoint, opened)
        state: dict[str, Any] = {}
        if resumed:
            from .load_checkpoint import load_checkpoint

            state = load_checkpoint(parts, progress, resumed)
        start = cores | ({"resumed": f"at step {progress.step}, from {shown(resumed)}"} if resumed else {})
        start |= techniques.start_weights(parts.cfg, parts.model, parts.hooks, progress, resumed)
        order = TrainOrder(parts.plan, world.rank, cfg.run.seed, progress.step, parts.data.train)
        train_loader = techniques.cache_on_device(
            Loader(parts.data.train, order, cfg.loader, parts.workers, world, cfg.run.seed), cfg.data
        )
        val_loader = techniques.cache_on_device(
            Loader(parts.data.val, parts.eval_order, cfg.loader, parts.workers, world, cfg.run.seed), cfg.data
        )
        new = not folder.exists()
        if world.is_main and not progress.done and progress.eval_every is not None:
            disk_space.check(folder, cfg, parts.model)
        # From here on files change, as nothing above refused the run.
        run_folder.create(cfg, folder, world, resumed, opened)
        if (cfg.run.resume or resumed) and world.is_main:
            from .resume import set_aside_after

            set_aside_after(progress.step, folder)
        unit = getattr(data, "UNIT", "samples")
        console = Console(world.is_main, progress.total_steps, parts.plan.steps_per_epoch, unit, cfg.train.monitor)
        requests = Requests(cfg.run, cfg.checkpoint.minutes, world, lambda name: _tell_end(name, console, run))
        try:
            console.facts({**parts.describe(), **samples.summary(parts.data), "run": shown(folder), **start})
            run_log = log.RunLog(folder, cfg.log, console, progress.step, not progress.validation_due)
            run_log.sinks += [hook.after_row for hook in parts.hooks]
            run = Run(parts, progress, run_log, order, train_loader, val_loader, requests, resumed, state)
            opened.enter_context(requests)
            opened.callback(lambda: run.log.close())
            opened.enter_context(speed.frozen_gc())
            opened.enter_context(heartbeat.watch(run, cfg.run.hang_minutes, world))
            for hook in parts.hooks:
                opened.enter_context(hook.running(parts.model, folder))
            with run.saver:
                yield run
        except UserError:
            if new and progress.step == 0 and world.is_main:
                shutil.rmtree(folder, ignore_errors=True)  # refused by a framework: the name is free again
            raise
        except (RuntimeError, MemoryError) as error:
            faults.restart_if_out_of_memory(error, parts, progress, folder)
            raise


def _tell_end(signal_name: str, console: Console, run: Run) -> None:
    from .resume import after_end

    console.facts(after_end(signal_name, run.folder, run.progress.step))


def main(train: Callable[[Config, World], object], argv: list[str] | None = None, kind: type[Config] = Config) -> None:
    """Read the command line and train; an expected error is one line on stderr."""
    try:
        short_warnings()
        cfg = parse(f"{__package__}.train", "Train the model.", argv, kind)
        techniques.start_processes(cfg.run, argv)
        with distributed.start(cfg.run.device) as world:
            train(cfg, world)
        distributed.end(world)
    except BaseException as error:
        from .failure import leave

        leave(error, argv)
