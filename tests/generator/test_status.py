"""`fastproj status`: where a project stands, for a reader and for CI."""

import json
import shutil
from pathlib import Path

from program import Fastproj
from updating import Made, commit, edit, files_of, git, stop_update


def test_what_was_changed_and_what_is_newer(made: Made, fastproj: Fastproj, bundles: list[Path]) -> None:
    folder = made("v0.2.0")
    edit(folder / "src/proj/engine.py", "return 20", "return 21")
    (folder / "logo.bin").unlink()
    (folder / "README.md").rename(folder / "READ.md")
    (folder / "mine.py").write_text("mine = 1\n")
    commit(folder)
    edit(folder / "configs/default.yaml", "workers: 4", "workers: 5")
    before = files_of(folder / ".git")
    done = fastproj("status", "--json", str(folder / "src"))
    assert done.returncode == 1, "it is behind"
    found = json.loads(done.stdout)
    assert (found["version"], found["newest"], found["behind"]) == ("v0.2.0", "v0.3.0", True)
    assert found["template"].endswith("team.bundle")
    assert found["answers"]["project_name"] == "proj"
    assert found["changed"] == ["configs/default.yaml", "src/proj/engine.py"]
    assert (found["deleted"], found["renamed"], found["conflicts"]) == (["logo.bin"], {"README.md": "READ.md"}, [])
    assert files_of(folder / ".git") == before, "not even git's folder is written to"
    done = fastproj("status", cwd=folder)
    assert done.returncode == 1
    assert "version   v0.2.0; v0.3.0 is available: fastproj update" in done.stdout
    assert "changed   src/proj/engine.py" in done.stdout


def test_the_newest_with_conflicts(made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.1.0")
    edit(folder / "src/proj/engine.py", '"""Of release', '"""Mine, and of release')
    commit(folder)
    assert fastproj("update", "--yes", cwd=folder).returncode == 1
    done = fastproj("status", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "CONFLICT  src/proj/engine.py: not resolved yet" in done.stdout
    commit(folder, "with the marks left in")
    done = fastproj("status", cwd=folder)
    assert "version   v0.3.0, the newest" in done.stdout
    assert "CONFLICT  src/proj/engine.py: not resolved yet" in done.stdout
    git(folder, "checkout", "HEAD~1", "--", ".")
    shutil.rmtree(folder / ".git")
    git(folder, "init", "-q")
    assert "no commit yet" in fastproj("status", cwd=folder).stderr


def test_untouched(made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.3.0")
    done = fastproj("status", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "changed   no rendered file" in done.stdout


def test_it_finishes_a_killed_update(made: Made, fastproj: Fastproj, environment: dict[str, str]) -> None:
    folder = made("v0.1.0")
    stop_update(environment, folder, "_step", "2", "SIGKILL")
    assert (folder / ".git/fastproj/journal.json").exists()
    done = fastproj("status", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Finished an interrupted update to v0.3.0." in done.stdout
    assert "changed   no rendered file" in done.stdout
    assert "M  README.md" in git(folder, "status", "--porcelain")
