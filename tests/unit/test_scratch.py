"""What a killed program leaves behind goes with a later start."""

import os
import time
from pathlib import Path

from fastproj.scratch import scratch_folder


def test_leftovers_are_removed_after_a_day(tmp_path: Path) -> None:
    yesterday = time.time() - 25 * 60 * 60
    for name, age in {".proj.fastproj-old": yesterday, ".proj.fastproj-new": time.time()}.items():
        (tmp_path / name / "template.git").mkdir(parents=True)
        os.utime(tmp_path / name, (age, age))
    (tmp_path / ".mine").mkdir()
    os.utime(tmp_path / ".mine", (yesterday, yesterday))
    with scratch_folder(tmp_path, "proj") as folder:
        assert folder.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {".proj.fastproj-new", ".mine"}
