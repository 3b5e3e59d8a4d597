"""The program's local copy of the template, while several programs refresh it at once."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from fastproj.template.embedded import entries
from template_copy import clones, held_versions

REFRESH = """
import sys
from pathlib import Path
from fastproj.template import embedded
embedded._PACKED = Path(sys.argv[1])
embedded.refresh_copy()
"""
"""The first action of every command, by a program that was installed with another template."""


def test_concurrent_refreshes_keep_the_copy_complete(
    packed: dict[str, Path], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", REFRESH, str(bundle)],
            env={**os.environ, "FASTPROJ_HOME": str(home)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for bundle in [*packed.values()] * 4
    ]
    reads = 0
    while any(process.poll() is None for process in running):
        with contextlib.suppress(FileNotFoundError):
            reads += bool(entries(home / "template.bundle"))
        time.sleep(0.005)
    messages = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), messages
    assert reads
    # The archive has no history in common with the others, so any of them may be the last to write.
    assert held_versions(home) in [[*entries(bundle)] for bundle in packed.values()]
    assert clones(home, tmp_path / "clone")
