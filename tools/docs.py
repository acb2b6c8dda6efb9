"""The documentation as a site, as `make docs` builds it: pages made by scripts first, then mkdocs.

A page that a script makes and that is not up to date, a link or an anchor that leads nowhere and a
page that the navigation doesn't name are errors.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def build(site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site into a folder; the process's output holds the warnings."""
    # The theme tells of its own successor at every build, which is no fault of a page.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    words = ["build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", *words, "--site-dir", str(site)],
        env=environment,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def main() -> None:
    """Build into site/, or say what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, default=ROOT / "site")
    site: Path = parser.parse_args().site.resolve()
    done = build(site)
    if done.returncode or done.stdout.strip():
        raise SystemExit(f"docs: {done.stdout.strip()}")
    print(f"docs: {site / 'index.html'}")


if __name__ == "__main__":
    main()
