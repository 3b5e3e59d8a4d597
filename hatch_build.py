"""Hooks of the build: the template as a git bundle, from which projects are rendered offline, and the README.

A package index shows the README without the files that it links to.
"""

import re
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

BUNDLE = "generator/fastproj/_template.bundle"


class TemplateBundle(BuildHookInterface[Any]):
    """Writes the bundle before a wheel or sdist is built, and adds it to the build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the bundle with the releases in the history, and with `copier.yml` and `template/` as they are now."""
        root = Path(self.root)
        build_data["artifacts"].append(BUNDLE)
        if (root / "PKG-INFO").exists() and (root / BUNDLE).exists():
            return  # this is an sdist
        sys.path.insert(0, str(root / "generator"))
        from template_bundle import build  # needs only the standard library and packaging

        build(root, root / BUNDLE)


class Readme(MetadataHookInterface):
    """Sets the README that a package index shows."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Take README.md, with links for everywhere: into `Repository` of [project.urls], as soon as that is set."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = for_index(text, metadata.get("urls", {}).get("Repository"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def for_index(readme: str, repository: str | None) -> str:
    """Return a README in which links to files of the repository are absolute; without its address, plain text.

    Images without an address are left out.
    """
    path = r"(?![a-z]+:|#)([^)\s\"]+)"  # no address, and no heading of the same page
    image, html_image, link = (
        rf"!\[([^]]*)\]\({path}\)",
        rf'(<img\b[^>]*?src="){path}("[^>]*>)',
        rf"\[([^]]+)\]\({path}\)",
    )
    if repository is None:
        return re.sub(link, r"\1", re.sub(f"{image}|{html_image}", "", readme))
    readme = re.sub(image, rf"![\1]({repository}/raw/HEAD/\2)", readme)
    readme = re.sub(html_image, rf"\1{repository}/raw/HEAD/\2\3", readme)
    return re.sub(link, rf"[\1]({repository}/blob/HEAD/\2)", readme)
