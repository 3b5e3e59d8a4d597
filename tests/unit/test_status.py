"""`fastproj status`: a project's version and the newest one, for a reader and for CI."""

import json

from program import Fastproj
from updating import MakeProject, edit, read_files


def test_status_says_what_is_newer(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.2.0")
    edit(folder / "src/proj/engine.py", "return 20", "return 21")
    before = read_files(folder / ".git")
    result = fastproj("status", "--json", str(folder / "src"), status=3)
    found = json.loads(result.stdout)
    assert found.keys() == {"project", "template", "version", "newest", "behind", "answers"}
    assert (found["project"], found["version"], found["newest"]) == (
        str(folder),
        "v0.2.0",
        "v0.3.0",
    )
    assert found["behind"] is True
    assert found["template"].endswith("team.bundle")
    assert found["answers"]["project_name"] == "proj"
    assert read_files(folder / ".git") == before, "not even git's folder is written to"
    result = fastproj("status", cwd=folder, status=3)
    assert "version   v0.2.0; v0.3.0 is available: fastproj update" in result.stdout


def test_status_of_a_project_at_the_newest_release(
    make_project: MakeProject, fastproj: Fastproj
) -> None:
    result = fastproj("status", cwd=make_project("v0.3.0"))
    assert result.stderr == ""
    assert "version   v0.3.0, the newest" in result.stdout
    assert "project_name=proj" in result.stdout
