"""No text says to install the program by its name."""

import re
import subprocess

from matrix import ROOT


def test_no_text_says_to_install_by_a_name() -> None:
    """We have published no package, and `fastproj` on PyPI is somebody else's."""
    by_name = re.compile(
        r"(?:pip|pipx|uv)\s+(?:install|add|tool)\b[^`\n]*[ '\"]fastproj(?:-cli)?(?![\w/.-])"
        r"|uvx +fastproj"
    )
    warning = re.compile(r"`pip install fastproj`[^.:]*\*\*another party's package\*\*")
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, files.split("\0")):
        file = ROOT / name
        if name == "tests/unit/test_install_texts.py" or not file.is_file():
            continue
        assert not by_name.search(warning.sub("", file.read_text(errors="replace"))), name
    assert by_name.search("pip install --upgrade fastproj")
    assert by_name.search("uvx fastproj-cli")
