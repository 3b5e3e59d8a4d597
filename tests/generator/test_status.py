"""`fastproj status`: where a project stands, for a reader and for CI."""

import json
import shutil
from pathlib import Path

from program import Fastproj
from updating import MakeProject, commit, edit, git, read_files


def test_status_lists_changes_and_newer_release(
    make_project: MakeProject, fastproj: Fastproj, bundles: list[Path]
) -> None:
    folder = make_project("v0.2.0")
    edit(folder / "src/proj/engine.py", "return 20", "return 21")
    (folder / "logo.bin").unlink()
    (folder / "README.md").rename(folder / "READ.md")
    (folder / "mine.py").write_text("mine = 1\n")
    commit(folder)
    edit(folder / "configs/default.yaml", "workers: 4", "workers: 5")
    before = read_files(folder / ".git")
    result = fastproj("status", "--json", str(folder / "src"))
    assert result.returncode == 3, "it is behind"
    found = json.loads(result.stdout)
    assert (found["version"], found["newest"], found["behind"]) == ("v0.2.0", "v0.3.0", True)
    assert found["template"].endswith("team.bundle")
    assert found["answers"]["project_name"] == "proj"
    assert found["changed"] == ["configs/default.yaml", "src/proj/engine.py"]
    assert (found["deleted"], found["renamed"], found["conflicts"]) == (["logo.bin"], {"README.md": "READ.md"}, [])
    assert read_files(folder / ".git") == before, "not even git's folder is written to"
    result = fastproj("status", cwd=folder)
    assert result.returncode == 3
    assert "version   v0.2.0; v0.3.0 is available: fastproj update" in result.stdout
    assert "changed   src/proj/engine.py" in result.stdout


def test_status_with_unresolved_conflicts(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.1.0")
    edit(folder / "src/proj/engine.py", '"""Of release', '"""Mine, and of release')
    commit(folder)
    assert fastproj("update", "--yes", cwd=folder).returncode == 1
    result = fastproj("status", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "CONFLICT  src/proj/engine.py: not resolved yet" in result.stdout
    commit(folder, "with the marks left in")
    result = fastproj("status", cwd=folder)
    assert "version   v0.3.0, the newest" in result.stdout
    assert "CONFLICT  src/proj/engine.py: not resolved yet" in result.stdout
    git(folder, "checkout", "HEAD~1", "--", ".")
    shutil.rmtree(folder / ".git")
    git(folder, "init", "-q")
    assert "no commit yet" in fastproj("status", cwd=folder).stderr


def test_status_of_an_unedited_project(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.3.0")
    result = fastproj("status", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "changed   no rendered file" in result.stdout
