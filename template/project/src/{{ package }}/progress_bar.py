"""The progress bar of a run in a terminal."""

import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import Any

from tqdm import tqdm
from tqdm.contrib import DummyTqdmFile


class _Bar(tqdm):  # type: ignore[type-arg]
    def clear(self, nolock: bool = False) -> None:
        """Also remove the ^C that a terminal prints after the bar."""
        super().clear(nolock)
        self.fp.write("\x1b[K")


class ProgressBar:
    """The newest row of metrics, the remaining time and a bar, in the last line; all other output goes above it."""

    def __init__(self, first_step: int, total_steps: int) -> None:
        form = "{desc} {remaining} {bar:-2}"  # two columns are left for the ^C that a terminal prints
        bar = _Bar(
            total=total_steps, initial=first_step, file=sys.stdout, bar_format=form, dynamic_ncols=True, leave=False
        )
        self.bar, self.update = bar, bar.update
        self.redirected = ExitStack()
        above: Any = DummyTqdmFile(sys.stdout)
        self.redirected.enter_context(redirect_stdout(above))
        self.redirected.enter_context(redirect_stderr(above))

    def show(self, row: str) -> None:
        """Replace the row, which appears with the next update."""
        self.bar.set_description_str(row, refresh=False)

    def close(self) -> None:
        """Remove the bar and end the redirection."""
        self.redirected.close()
        self.bar.close()
        print(end="\r\x1b[K", flush=True)  # erases the ^C as well
