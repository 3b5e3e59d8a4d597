"""`fastproj adopt` restores a lost answers file from the git history."""

from pathlib import Path

import pytest
from program import Fastproj
from updating import MakeProject, commit, edit, git, read_answers, read_files


@pytest.mark.parametrize("deleted", [True, False])
def test_lost_answers_are_restored(deleted: bool, make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.2.0")
    file = folder / ".copier-answers.yml"
    content = file.read_bytes()
    if deleted:
        file.unlink()
    else:
        edit(file, "_commit: v0.2.0\n", "")
    edit(folder / "src/proj/engine.py", "return 20", "return 21")
    commit(folder)
    before = read_files(folder)
    assert "fastproj adopt" in fastproj("update", "--yes", cwd=folder).stderr
    result = fastproj("adopt", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert f"Restored {file} from commit {git(folder, 'rev-parse', 'HEAD~1')[:12]}" in result.stdout
    assert file.read_bytes() == content
    assert read_files(folder) == before | {".copier-answers.yml": ("-", content)}
    commit(folder)
    assert fastproj("update", "--yes", cwd=folder).returncode == 0
    assert read_answers(folder)["_commit"] == "v0.3.0"
    assert "return 21" in (folder / "src/proj/engine.py").read_text()
    commit(folder)
    again = fastproj("adopt", cwd=folder)
    assert (again.returncode, "links the project already" in again.stderr) == (1, True)


def test_history_without_answers_is_refused(make_project: MakeProject, fastproj: Fastproj, tmp_path: Path) -> None:
    folder = make_project()
    (folder / ".copier-answers.yml").unlink()
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=u", "-c", "user.email=u@example.org", "commit", "-q", "--amend", "-m", "anew")
    before = read_files(folder)
    refused = {folder: "no commit", tmp_path / "nowhere": "is not a folder", tmp_path: "git repository"}
    for place, message in refused.items():
        result = fastproj("adopt", str(place))
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert message in result.stderr
    assert read_files(folder) == before
