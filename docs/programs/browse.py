"""Open every page of the built site in headless Chromium, at the widths of a desktop and of a phone: `make docs-check`.

    python docs/programs/browse.py build/site [--screenshots FOLDER]

It fails on an error in the console, an image that cannot be shown, a page that is wider than the
screen, a table that is clipped on a desktop, and a search that finds nothing without a server.
Chromium must be on the PATH: `apt-get install chromium`, for example. Nothing outside of this
machine is opened.
"""

import argparse
import functools
import http.server
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

WIDTHS = {"desktop": 1280, "phone": 390}
PICTURES = [
    *("index", "start/first-run", "start/your-model", "how-to/report", "how-to/resume"),
    *("components", "comparison", "reference/config", "reference/errors", "models/gpt"),
]
"""The pages of which screenshots are taken."""
CHECK = "browse-check.html"
LIMIT_S = 240
SCRIPT = """<!doctype html><title>check</title><body><script>
const pages = %s, widths = %s, found = [];
async function open(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:900px;border:0`;
  frame.src = page;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const view = frame.contentDocument;
  for (const image of view.images) {
    image.loading = "eager";
    await image.decode().catch(() => found.push(`${page}: ${image.getAttribute("src")} cannot be shown`));
  }
  const wide = view.documentElement.scrollWidth;
  if (wide > width) found.push(`${page}: ${wide} pixels wide on a screen of ${width}`);
  for (const table of width > 1000 ? view.querySelectorAll(".md-typeset__scrollwrap") : [])
    if (table.scrollWidth > table.clientWidth + 1) found.push(`${page}: a table is clipped on a screen of ${width}`);
  frame.remove();
}
(async () => {
  for (const page of pages) for (const width of widths) await open(page, width);
  await fetch("result", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


def main() -> None:
    """Check the site, and take the screenshots."""
    parser = argparse.ArgumentParser(description="Open the built site in headless Chromium.")
    parser.add_argument("site", type=Path, nargs="?", default=Path("build/site"))
    parser.add_argument("--screenshots", type=Path, help="folder for screenshots of some pages")
    args = parser.parse_args()
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        sys.exit(
            "chromium is not on the PATH: install it, for example with apt-get install chromium"
        )
    handler = functools.partial(Server, directory=str(args.site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        errors = check(chromium, args.site, address)
        for page in PICTURES if args.screenshots else []:
            take(chromium, f"{address}/{page}.html", args.screenshots, page.replace("/", "-"))
        server.shutdown()
    errors += search(chromium, args.site)
    sys.exit("\n".join(errors) or 0)


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and takes the result of the check."""

    results: queue.Queue[bytes] = queue.Queue()

    def do_POST(self) -> None:
        """Take the result."""
        self.results.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def check(chromium: str, site: Path, address: str) -> list[str]:
    """Open all pages in frames of one page, and return what is wrong."""
    pages = sorted(
        str(file.relative_to(site))
        for file in site.rglob("*.html")
        if file.name not in ("404.html", CHECK)
    )
    (site / CHECK).write_text(SCRIPT % (json.dumps(pages), json.dumps(list(WIDTHS.values()))))
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        tempfile.TemporaryFile("w+") as log,
    ):
        command = [chromium, *options(profile), "--remote-debugging-port=0", f"{address}/{CHECK}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        try:
            found: list[str] = json.loads(Server.results.get(timeout=LIMIT_S))
        except queue.Empty:
            found = [f"Chromium did not open all pages within {LIMIT_S} s"]
        finally:
            process.terminate()
            process.wait()
            (site / CHECK).unlink()
        log.seek(0)
        console = [line.strip() for line in log if ":CONSOLE" in line]
    print(f"{len(pages)} pages, at widths of {', '.join(map(str, WIDTHS.values()))} pixels")
    return [*found, *console]


def search(chromium: str, site: Path) -> list[str]:
    """Search for a word on a page that is opened from disk, and return what is wrong."""
    page = f"{(site / 'index.html').absolute().as_uri()}?q=accumulation"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [chromium, *options(profile), "--virtual-time-budget=15000", "--dump-dom", page]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [] if " matching document" in result.stdout else ["a search from disk finds nothing"]


def take(chromium: str, address: str, folder: Path, name: str) -> None:
    """Take a screenshot of a page at each width."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, width in WIDTHS.items():
        picture = folder.absolute() / f"{name}-{kind}.png"
        height = 1400 if kind == "desktop" else 1600
        still = "--force-prefers-reduced-motion"  # the recording shows all of its lines
        command = [
            f"--screenshot={picture}",
            f"--window-size={width},{height}",
            still,
            "--virtual-time-budget=8000",
            address,
        ]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            subprocess.run(
                [chromium, *options(profile), *command], capture_output=True, timeout=60, check=True
            )


def options(profile: str) -> list[str]:
    """Return Chromium's options, with a profile of its own."""
    fixed = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
    ]
    return [*fixed, "--enable-logging=stderr", "--log-level=0"]


if __name__ == "__main__":
    main()
