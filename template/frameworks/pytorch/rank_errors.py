"""An error of one rank ends the others: else they would wait for it until a launcher kills them."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist

from .errors import Stopped, UserError, kill_workers

FAILED = "failed"
"""Key of the ranks' store."""


@contextmanager
def fail_together(store: Any) -> Iterator[None]:
    """Tell the other ranks about an error of this one, which prints it; end if another one has one.

    Else the others would wait for this one, or print what they miss of it.
    """
    others = _Others(store)
    stopped: Stopped | None = None
    try:
        try:
            yield
        except Stopped as error:
            stopped = error
        dist.barrier()  # the store ends with rank 0, and the others still look into it
    except BaseException as error:
        if others.have_failed:
            time.sleep(10)  # a launcher names the rank that ends first; then it ends this one
            raise SystemExit(1) from None
        with suppress(RuntimeError):  # the store is gone, with another rank
            store.set(FAILED, "")
            time.sleep(2)  # until they have read it: the store may end with this process
        if "onnection closed by peer" in str(error) or "onnection reset by peer" in str(error):
            raise UserError("the connection to another rank is gone: look for its error") from None
        raise
    finally:
        others.are_over.set()
    if stopped:
        raise stopped


class _Others:
    """Looks once per second whether another rank has failed, in a thread."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.have_failed = False
        self.are_over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self.have_failed:
            if self.are_over.wait(1):
                return
            try:
                self.have_failed = self.store.check([FAILED])
            except RuntimeError:  # the store is gone, with its rank
                return
        if not self.are_over.wait(10):  # it waits for the other rank
            kill_workers()
            os._exit(1)
