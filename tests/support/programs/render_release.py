"""Render a project from the program's own copy of the template, as an earlier fastproj did.

FOLDER VERSION MODEL.
"""

import sys

import copier

folder, version, model = sys.argv[1:]
answers = {"project_name": "proj", "model": model}
source = "~/.fastproj/template.bundle"
copier.run_copy(
    source,
    folder,
    vcs_ref=f"v{version}",
    data=answers,
    defaults=True,
    quiet=True,
)
