"""Check the links of the built site and of the Markdown files in the repository's top folder, without a network.

    python docs/programs/links.py build/site

Each link, image, script and style of a page must be a file of the site, and each anchor an `id` of
its page. Links to other hosts must be https; they are not followed.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag links to, and its id."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


def broken(site: Path) -> list[str]:
    """Return the broken links of a built site, as `page: link`."""
    pages = {file: Page(file.read_text()) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        base = site if file.name == "404.html" else file.parent
        for link in page.links:
            if not _works(link, file, base, pages):
                found.append(f"{file.relative_to(site)}: {link}")
    return found


def _works(link: str, file: Path, base: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return parts.scheme in ("https", "mailto", "data")
    path = unquote(parts.path).lstrip("/") if file.name == "404.html" else unquote(parts.path)
    target = (base / path).resolve() if path else file
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return False
    return (
        not parts.fragment
        or target not in pages
        or unquote(parts.fragment) in pages[target].anchors | {"__skip"}
    )


def broken_in(file: Path) -> list[str]:
    """Return the broken links of a Markdown file, to files of the repository and to their headings."""
    found = []
    for link in LINK.findall(re.sub(r"```.*?```|`[^`]*`", "", file.read_text(), flags=re.DOTALL)):
        parts = urlsplit(link)
        if parts.scheme:
            works = parts.scheme == "https"
        else:
            target = file.parent / parts.path if parts.path else file
            works = target.exists() and (not parts.fragment or parts.fragment in headings(target))
        if not works:
            found.append(f"{file.name}: {link}")
    return found


def headings(file: Path) -> set[str]:
    """Return the anchors of a Markdown file's headings."""
    lines = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in lines}


def main() -> None:
    """Print what is broken."""
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/site"
    found = broken(site) + [link for file in sorted(ROOT.glob("*.md")) for link in broken_in(file)]
    sys.exit("\n".join(found) or 0)


if __name__ == "__main__":
    main()
