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
        in_sdist = (root / "PKG-INFO").exists() and (root / BUNDLE).exists()
        if in_sdist or version == "editable":
            return  # an editable install builds a bundle of the working tree when it needs one
        sys.path.insert(0, str(root / "generator"))
        from fastproj.shared.bundle import build  # needs only the standard library and packaging

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
    relative = r"(?![a-z]+:|#)([^)\s\"]+)"
    images, links = (
        (rf"!\[([^]]*)\]\({relative}\)", rf'<img\b[^>]*?src="{relative}"[^>]*>'),
        rf"\[([^]]+)\]\({relative}\)",
    )
    if repository is None:
        for image in images:
            readme = re.sub(image, "", readme)
        return re.sub(links, r"\1", readme)
    readme = re.sub(images[0], rf"![\1]({repository}/raw/HEAD/\2)", readme)
    readme = re.sub(rf'(<img\b[^>]*?src="){relative}', rf"\1{repository}/raw/HEAD/\2", readme)
    return re.sub(links, rf"[\1]({repository}/blob/HEAD/\2)", readme)
