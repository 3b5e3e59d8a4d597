"""Train the model with Accelerate. A run that has a name is resumed by the same command.

python -m <package>.train --config configs/default.yaml --run.name first    # one process
accelerate launch --config_file configs/accelerate.yaml -m <package>.train \
    --config configs/default.yaml
"""

import gc
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from tqdm import tqdm

from . import checkpoint, data, loader, optim
from .accelerator import create, join
from .config import Config, parse
from .errors import Stopped, UserError, one_line
from .log import Clock, MetricsFile
from .metrics import Means, compute_loss, evaluate, seed_batch
from .model import build


def train(cfg: Config) -> dict[str, float]:
    """Train as configured, or resume the run of this name; return the last validation's metrics."""
    join(cfg.run.device)
    now = time.strftime("%Y-%m-%d-%H-%M-%S")
    folder = cfg.run.dir / broadcast_object_list([cfg.run.name or now])[0]
    metrics_file = MetricsFile(folder, asdict(cfg))
    further = [cfg.accelerate.tracker] if cfg.accelerate.tracker else []
    accelerator = create(cfg, folder, metrics_file, *further)
    processes = accelerator.num_processes
    set_seed(cfg.run.seed)

    # Data. An epoch has whole global batches only.
    train_set, val_set, spec = data.load(cfg.data)
    train_loader = loader.train_loader(train_set, cfg, processes)
    val_loader = loader.val_loader(val_set, cfg, processes)
    prepare = data.Prepare(spec, cfg.data).to(accelerator.device)

    # Model, optimizer, schedule. A prepared schedule would advance once per process in each step.
    model = build(cfg.model, spec)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    on_cuda = accelerator.device.type == "cuda"
    if cfg.speed.channels_last is True or (cfg.speed.channels_last == "auto" and on_cuda):
        model = model.to(memory_format=torch.channels_last)
    # A fused optimizer hides from Accelerate that fp16 skipped its step.
    adamw = optim.adamw(model, cfg.optim, fused=accelerator.scaler is None)
    model, optimizer, train_loader, val_loader = accelerator.prepare(
        model, adamw, train_loader, val_loader
    )
    if cfg.speed.compile == "model":
        model.compile(dynamic=False)  # in place: the names of parameters stay the same
    accumulate = cfg.train.accumulate
    global_batch = cfg.train.micro_batch * accumulate * processes
    per_epoch = len(train_loader) // accumulate
    total_steps = cfg.train.steps or math.ceil(cfg.train.epochs * per_epoch)
    eval_every = cfg.train.eval_every or per_epoch
    optim.one_cycle(adamw, cfg.optim, total_steps)

    # Resume from the newest checkpoint of this run.
    progress = checkpoint.load(accelerator, folder / "checkpoints", adamw)
    schedule = optim.one_cycle(adamw, cfg.optim, total_steps, progress.updates)
    metrics_file.steps = total_steps
    metrics_file.first_step = progress.step
    options = {name: str(section) for name, section in asdict(cfg).items()}
    accelerator.init_trackers(str(__package__), options)
    accelerator.print(
        f"{folder}: {parameters:,} parameters on {processes} x {accelerator.device.type}, "
        f"mixed precision {accelerator.mixed_precision}\n"
        f"{len(train_set):,} training samples, {len(val_set):,} validation samples, "
        f"global batch {global_batch:,}, {total_steps:,} steps from step {progress.step:,}"
    )

    def log(split: str, row: dict[str, float]) -> None:
        values = {f"{split}/{name}": value for name, value in row.items()}
        accelerator.log(values, step=progress.step)
        clock.restart()

    def save_weights(partial: Path) -> None:
        accelerator.save_model(model, str(partial), max_shard_size="1000TB")

    def validate() -> dict[str, float]:
        results = evaluate(accelerator, model, val_loader, prepare)
        if results["loss"] < progress.best:
            progress.best = results["loss"]
            checkpoint.replace(accelerator, folder / "best", save_weights)
        log("val", results)
        return results

    def should_validate() -> bool:
        return progress.step % eval_every == 0 or progress.step == total_steps

    # A resumed run validates again: it may have ended between a checkpoint and its validation.
    clock = Clock()
    results = validate() if progress.step > 0 and should_validate() else {}
    means = Means(accelerator)
    limit = math.inf if cfg.run.hours is None else time.monotonic() + 3600 * cfg.run.hours
    stops = False
    off = None if accelerator.is_main_process else True  # None: off unless stderr is a terminal
    bar = tqdm(total=total_steps, initial=progress.step, unit="step", disable=off)
    gc.freeze()  # the garbage collector skips what exists now

    with bar, stop_signals(accelerator):
        while progress.step < total_steps and not stops:
            epoch, done = divmod(progress.step, per_epoch)
            train_loader.set_epoch(epoch)
            batches = train_loader
            if done > 0:
                batches = accelerator.skip_first_batches(train_loader, done * accumulate)
            for number, loaded in enumerate(clock.watch(batches)):
                # Random numbers follow from the step, so that a resumed run draws the same ones.
                micro = number % accumulate * processes + accelerator.process_index
                seed = (cfg.run.seed * 1_000_003 + progress.step) * 65_537 + micro
                batch = prepare(loaded, True, seed_batch(seed, accelerator.device))

                with accelerator.accumulate(model):
                    loss, metrics = compute_loss(model, batch)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        most = cfg.optim.clip or math.inf
                        grad_norm = accelerator.clip_grad_norm_(model.parameters(), most)
                    optimizer.step()
                    optimizer.zero_grad()
                means.add(metrics)
                if not accelerator.sync_gradients:
                    continue

                lr = schedule.get_last_lr()[0]
                if not accelerator.optimizer_step_was_skipped:
                    schedule.step()
                    progress.updates += 1
                progress.step += 1
                bar.update()
                if progress.step % cfg.log.every and not should_validate():
                    continue

                row = means.read() | {"grad_norm": float(grad_norm), "lr": lr}
                check_finite(row, progress.step, fp16=accelerator.scaler is not None)
                log("train", row | clock.read(cfg.train.micro_batch * processes))
                if time.monotonic() > limit:
                    accelerator.set_trigger()
                stops = accelerator.check_trigger()

                if stops or should_validate():
                    checkpoint.save(accelerator, folder / "checkpoints", progress, cfg.run.keep)
                if should_validate():
                    results = validate()
                if stops or progress.step == total_steps:
                    break

    accelerator.end_training()
    if progress.step < total_steps:
        resume = f"resume with --run.name {folder.name}"
        raise Stopped(f"stopped at step {progress.step:,}: {resume}")
    return results


def check_finite(row: dict[str, float], step: int, fp16: bool) -> None:
    """Refuse to go on with NaN or infinity; fp16 skips a step whose gradients are not finite."""
    if math.isfinite(row["loss"]) and (fp16 or math.isfinite(row["grad_norm"])):
        return
    values = f"the loss is {row['loss']:.4g} and the gradient norm {row['grad_norm']:.4g}"
    raise UserError(f"{values} at step {step:,}: lower optim.lr")


@contextmanager
def stop_signals(accelerator: Accelerator) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGUSR1 set the trigger that all processes check."""
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        handlers[number] = signal.signal(number, lambda *_: accelerator.set_trigger())
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def main() -> None:
    """Train with the options of the command line."""
    with one_line():
        train(parse())


if __name__ == "__main__":
    main()
