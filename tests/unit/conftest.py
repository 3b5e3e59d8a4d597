"""Tests here start no Python and need no torch: the program's commands run in this process."""

from in_process import copies, fastproj, fork, refresh, small_template

__all__ = ["copies", "fastproj", "fork", "refresh", "small_template"]
