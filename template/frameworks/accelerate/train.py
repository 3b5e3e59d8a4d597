"""Train the model with Accelerate. A run that has a name is resumed by the same command.

python -m <package>.train --config configs/default.yaml --run.name first    # one process
accelerate launch --config_file configs/accelerate.yaml -m <package>.train \
    --config configs/default.yaml
"""

import gc
import json
import math
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list, set_seed
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from tqdm import tqdm

from . import checkpoint, data, loader, record
from .accelerator import create, join
from .config import Config, OptimConfig, TrainConfig, parse
from .contracts import describe_data, load_data, parameter_groups, spec_fields
from .errors import Stopped, UserError, one_line, second_signal_ends
from .evaluate import Means, evaluate, mean_over_processes, seed_batch
from .log import Clock, MetricsFile
from .loss import StepMean, compute_loss
from .model import build
from .workers import limit_time


def train(cfg: Config) -> dict[str, float]:
    """Train as configured, or resume the run of this name; return the last validation's metrics."""
    join(cfg.run.device)
    folder = run_folder(cfg)
    metrics_file = MetricsFile(folder, asdict(cfg))
    accelerator = create(cfg, folder, metrics_file)
    processes = accelerator.num_processes
    is_fp16 = accelerator.scaler is not None
    set_seed(cfg.run.seed)

    # Data. A resumed run keeps its Spec.
    resumed = check_record(cfg, folder, processes)
    train_set, val_set, spec = load_data(data, cfg.data, checkpoint.spec_of(resumed))
    plan = loader.Plan.make(cfg.train, len(train_set), processes)
    train_loader = loader.train_loader(train_set, cfg, plan)
    val_loader = loader.val_loader(val_set, cfg, processes)
    prepare = data.Prepare(spec, cfg.data).to(accelerator.device)

    # Model, optimizer, schedule. A prepared schedule would advance once per process in each step.
    model = build_model(cfg, spec, accelerator.device)
    # A fused optimizer hides from Accelerate that fp16 skipped its step.
    adamw = build_adamw(model, cfg.optim, fused=not is_fp16)
    one_cycle(adamw, cfg.optim, plan.total_steps)  # gives it the rates of the config
    model, optimizer, train_loader, val_loader = accelerator.prepare(
        model, adamw, train_loader, val_loader
    )

    # Resume from the newest checkpoint of this run.
    progress = checkpoint.Progress()
    accelerator.register_for_checkpointing(progress)
    checkpoint.load(accelerator, folder, adamw)
    schedule = one_cycle(adamw, cfg.optim, plan.total_steps, progress.updates)
    endless = loader.endless(accelerator, train_loader, plan, progress.step)
    batches = limit_time(endless, cfg.loader.timeout)
    samples = {"training samples": len(train_set), "validation samples": len(val_set)}
    trained_with = check_samples(cfg, resumed, plan, samples)
    metrics_file.facts |= {"trained_with": trained_with, "steps": plan.total_steps}
    metrics_file.facts["spec"] = spec_fields(spec)
    metrics_file.first_step = progress.step
    options = {name: str(value) for name, value in trained_with.items()}
    accelerator.init_trackers(str(__package__), options)
    accelerator.print(
        f"{folder}: {count(model):,} parameters on {processes} x {accelerator.device.type}, "
        f"mixed precision {accelerator.mixed_precision}\n"
        f"{len(train_set):,} training samples, {len(val_set):,} validation samples, "
        f"global batch {plan.global_batch_size:,}, steps {progress.step:,} to {plan.total_steps:,}",
        *describe_data(data, train_set, val_set, spec),
        sep="\n",
    )
    bar = tqdm(
        total=plan.total_steps,
        initial=progress.step,
        unit="step",
        disable=None if accelerator.is_main_process else True,  # None: off if not in a terminal
    )
    clock = Clock()

    def log(split: str, row: dict[str, float]) -> None:
        values = {f"{split}/{name}": value for name, value in row.items()}
        accelerator.log(values, step=progress.step)
        clock.restart()

    def save_weights(partial: str) -> None:
        accelerator.save_model(model, partial, max_shard_size="1000TB")
        if accelerator.is_main_process:
            best = {"step": progress.step, "monitor": cfg.train.monitor, "value": progress.best}
            Path(partial, "validation.json").write_text(json.dumps(best))

    def validate() -> dict[str, float]:
        limited = limit_time(val_loader, cfg.loader.timeout)
        results = evaluate(accelerator, model, limited, prepare)
        if is_best(accelerator, progress, results, cfg.train):
            progress.best = results[cfg.train.monitor]
            progress.monitor = cfg.train.monitor
            checkpoint.replace(accelerator, folder / "best", save_weights)
        log("val", results)
        return results

    # A resumed run validates again: it may have ended between a checkpoint and its validation.
    results = validate() if plan.validates(progress.step) else {}
    means = Means(accelerator, loss_of_none=0.0)
    step_mean = StepMean(partial(mean_over_processes, accelerator))
    should_stop = False
    gc.freeze()  # the garbage collector skips what exists now

    with closing(metrics_file), bar, stop_requests(accelerator, cfg.run.hours):
        while progress.step < plan.total_steps and not should_stop:
            micro, loaded = clock.wait_for(batches)
            # Random numbers follow from the step, so that a resumed run draws the same ones.
            number = (cfg.run.seed * 1_000_003 + progress.step) * 65_537
            number += micro * processes + accelerator.process_index
            batch = prepare(loaded, True, seed_batch(number, accelerator.device))

            with accelerator.accumulate(model):
                loss, metrics = compute_loss(model, batch)
                accelerator.backward(loss * step_mean.weight(metrics, micro == 0))
                if accelerator.sync_gradients:
                    step_mean.scale(model.parameters(), plan.accumulation_steps)
                    grad_norm = clip(accelerator, model, cfg.optim.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
            means.add(metrics)
            if not accelerator.sync_gradients:
                continue

            lr = float(schedule.get_last_lr()[0])
            if not accelerator.optimizer_step_was_skipped:
                schedule.step()
                progress.updates += 1
            progress.step += 1
            bar.update()
            should_validate = plan.validates(progress.step)
            if progress.step % cfg.log.every > 0 and not should_validate:
                continue

            row = means.read()  # waits for the device, as do the next lines
            row |= {"grad_norm": grad_norm.item(), "lr": lr}
            check_finite(row, progress.step, is_fp16)
            log("train", row | clock.read(cfg.train.batch_size * processes))
            should_stop = accelerator.check_trigger()
            if should_validate or should_stop:
                checkpoint.save(accelerator, folder, progress.step, cfg.run.keep)
            if should_validate:
                results = validate()

    # DDP before its process group: the last of both waits for gloo's threads, which may need the
    # GIL to free a tensor, and DDP does not release it.
    gc.unfreeze()  # in mixed precision, the model refers to itself
    [model] = accelerator.free_memory(model)
    accelerator.end_training()
    if progress.step < plan.total_steps:
        resume = f"resume with --run.name {folder.relative_to(cfg.run.dir)}"
        raise Stopped(f"stopped at step {progress.step:,}: {resume}")
    return results


def run_folder(cfg: Config) -> Path:
    """Return the folder of a run; its name is the date and time, unless the config has one."""
    name = cfg.run.name
    if name is None and PartialState().is_main_process:
        name = record.create_folder(cfg.run.dir)
    names = broadcast_object_list([name])
    return cfg.run.dir / str(names[0])


def check_record(
    cfg: Config,
    folder: Path,
    processes: int,
) -> Path | None:
    """Refuse to resume a run with other options; return its folder if it has a checkpoint."""
    if checkpoint.find(folder) is None:
        return None
    sizes = cfg.train
    global_batch_size = sizes.batch_size * sizes.gradient_accumulation_steps * processes
    if not cfg.run.allow_changes:
        must_stay = record.trained_with(cfg, global_batch_size)
        record.check(folder, cfg, must_stay)
    return folder


def check_samples(
    cfg: Config, resumed: Path | None, plan: loader.Plan, samples: dict[str, int]
) -> dict[str, Any]:
    """Refuse to resume a run with other samples; return what it is trained with."""
    must_stay = record.trained_with(cfg, plan.global_batch_size) | samples
    if resumed and not cfg.run.allow_changes:
        record.check(resumed, cfg, must_stay)
    return must_stay


def is_best(
    accelerator: Accelerator,
    progress: checkpoint.Progress,
    results: dict[str, float],
    cfg: TrainConfig,
) -> bool:
    """Whether a validation is the best so far; one that is not finite never is."""
    if cfg.monitor not in results:
        known = ", ".join(results)
        raise UserError(f"train.monitor is {cfg.monitor}: the validation metrics are {known}")
    for name, value in results.items():
        if not math.isfinite(value):
            what = f"{name} is {value} in the validation of step {progress.step:,}"
            accelerator.print(f"warning: {what}")
    value = results[cfg.monitor]
    if not math.isfinite(value):
        return False
    if progress.best is None or progress.monitor != cfg.monitor:
        return True
    return value > progress.best if cfg.monitor_mode == "max" else value < progress.best


def is_finished(cfg: Config) -> bool:
    """Whether the run of this name ended with the same options; say so."""
    folder = cfg.run.dir / (cfg.run.name or "")
    step = record.finished_at(folder, cfg)
    if step is None or not (folder / f"checkpoints/step-{step:08d}").exists():
        return False
    state = PartialState()
    state.print(f"{folder} is finished, after {step:,} steps: use another run.name")
    state.destroy_process_group()
    return True


def build_model(
    cfg: Config,
    spec: data.Spec,
    device: torch.device,
) -> nn.Module:
    """Return the model, with the memory format and the compilation of the config."""
    model: nn.Module = build(cfg.model, spec)
    channels_last = cfg.speed.channels_last
    if channels_last == "auto":
        channels_last = device.type == "cuda"
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if cfg.speed.compile == "model":
        model.compile(dynamic=False)  # in place: the names of parameters stay the same
    return model


def build_adamw(
    model: nn.Module,
    cfg: OptimConfig,
    fused: bool,
) -> AdamW:
    """Return AdamW, with weight decay for matrices only."""
    return AdamW(
        parameter_groups(model, cfg.weight_decay),
        lr=cfg.lr,
        betas=(0.9, cfg.beta2),
        eps=cfg.eps,
        fused=fused,
    )


def one_cycle(
    optimizer: AdamW,
    cfg: OptimConfig,
    total_steps: int,
    done: int = 0,
) -> OneCycleLR:
    """Return 1cycle after so many steps: Smith and Topin 2018 (arXiv:1708.07120)."""
    # torch divides by zero where the rise or the fall has no step
    steps = max(total_steps, done, 3)
    return OneCycleLR(
        optimizer,
        cfg.lr,
        steps,
        pct_start=max(cfg.pct_start, 2 / steps),
        div_factor=cfg.div_factor,
        last_epoch=done - 1,
    )


def count(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def clip(
    accelerator: Accelerator,
    model: nn.Module,
    most: float | None,
) -> torch.Tensor:
    """Clip the gradients of the global batch; return their norm before that."""
    norm: Any = accelerator.clip_grad_norm_(model.parameters(), most or math.inf)
    # of the shards of FSDP
    whole: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def check_finite(
    row: dict[str, float],
    step: int,
    fp16: bool,
) -> None:
    """Refuse to go on with NaN or infinity; fp16 skips a step whose gradients are not finite."""
    if math.isfinite(row["loss"]) and (fp16 or math.isfinite(row["grad_norm"])):
        return
    values = f"the loss is {row['loss']:.4g} and the gradient norm {row['grad_norm']:.4g}"
    raise UserError(f"{values} at step {step:,}: lower optim.lr")


@contextmanager
def stop_requests(accelerator: Accelerator, hours: float | None) -> Iterator[None]:
    """Let signals and the time limit set the trigger that all processes check."""
    handlers = {}
    requested = False

    def request(*_: object) -> None:
        nonlocal requested
        requested = True
        accelerator.set_trigger()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM):
        handlers[number] = signal.signal(number, request)
    signal.setitimer(signal.ITIMER_REAL, 3600 * (hours or 0))  # 0: never
    try:
        with second_signal_ends():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            # a launcher may send one again; a second Ctrl-C still ends the process
            is_repeated = requested and number != signal.SIGINT
            signal.signal(number, signal.SIG_IGN if is_repeated else handler)


def main() -> None:
    """Train with the options of the command line."""
    with one_line():
        cfg = parse(Config)
        join(cfg.run.device)
        if not is_finished(cfg):
            train(cfg)


if __name__ == "__main__":
    main()
