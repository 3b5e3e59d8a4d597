"""Train the network of a rendered `proj` with Hugging Face's Trainer, as `loops.py` does.

    python hf_trainer.py MODEL --config configs/default.yaml

The Trainer has its defaults where they do not change the result. Prints what `loops.py` prints.
"""

import json
import sys
import time
from itertools import chain, pairwise
from typing import Any

from peer_setup import NamedSamples, Setup
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments


def hugging_face(setup: Setup) -> list[float]:
    """Train with Hugging Face's Trainer, and return the microseconds per step of each block."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = setup.net

        def forward(self, **batch: Tensor) -> dict[str, Tensor]:
            inputs = setup.prepared(tuple(batch.values()))
            return {"loss": setup.loss(inputs)}

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return list(chain.from_iterable(setup.order))

    times: list[float] = []

    class Clock(TrainerCallback):
        def on_log(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    steps = setup.plan.total_steps
    every = setup.cfg.log.every
    arguments = TrainingArguments(
        output_dir="runs/hf",
        use_cpu=True,
        max_steps=steps,
        logging_steps=every,
        per_device_train_batch_size=setup.cfg.train.batch_size,
        max_grad_norm=setup.cfg.optim.max_grad_norm,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    optimizers: Any = (setup.optimizer, setup.torch_schedule())
    trainer = InOrder(
        Net(),
        arguments,
        train_dataset=NamedSamples(setup.train_set),
        optimizers=optimizers,
        callbacks=[Clock()],
    )
    begin = time.perf_counter()
    trainer.train()
    ends = [begin, *times[: steps // every]]
    return [(end - start) / every * 1e6 for start, end in pairwise(ends)]


if __name__ == "__main__":
    made = Setup(sys.argv[1], sys.argv[2:])
    print(json.dumps({"times": hugging_face(made), "loss": made.validate()}))
