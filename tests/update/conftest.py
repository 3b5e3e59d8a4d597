"""Updates of projects: the program's commands run in this process, as in tests/unit, with dozens of calls of git each."""

from in_process import copies, fastproj, fork, refresh, small_template

__all__ = ["copies", "fastproj", "fork", "refresh", "small_template"]
