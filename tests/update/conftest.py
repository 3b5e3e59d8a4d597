"""Updates of projects, as in tests/unit in this process; each calls git dozens of times."""

from in_process import copies, fastproj, fork, refresh, small_template

__all__ = ["copies", "fastproj", "fork", "refresh", "small_template"]
