"""`python -m dev.site`: build the site in `build/docs/site`. A broken link is an error."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from dev.site.llms import write_llms
from dev.site.navigation import as_toml, navigation
from dev.site.reference import pages
from dev.site.staging import on_site, stage

_ROOT = Path(__file__).resolve().parents[2]
_CONFIGURATION = """\
[project]
site_name = "Queue Manager"
site_description = "A Celery application that finds due work in MongoDB and executes it on time."
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
extra_css = ["site.css"]
nav = {nav}

[project.theme]
font = false
features = ["content.code.copy", "navigation.instant", "navigation.sections", "navigation.top", "search.highlight"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
"""
# A long name in one column of a table must not make the others narrow.
_STYLE = ".md-typeset td { min-width: 7em; overflow-wrap: anywhere; }\n"


def main() -> int:
    directory = _ROOT / "build" / "docs"
    shutil.rmtree(directory, ignore_errors=True)
    generated = pages()
    stage(_ROOT, directory / "pages", {path: text for path, (_, text) in generated.items()})
    (directory / "pages" / "site.css").write_text(_STYLE)
    index = _ROOT / "docs" / "README.md"
    titles = {path: title for path, (title, _) in generated.items()}
    entries = navigation(index.read_text(), titles, lambda link: on_site(_ROOT, index, link))
    (directory / "zensical.toml").write_text(_CONFIGURATION.format(nav=as_toml(entries)))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", "zensical.toml"]
    if subprocess.run(command, cwd=directory).returncode != 0:
        return 1
    write_llms(directory / "pages", directory / "site", entries)
    print(f"The site is in {(directory / 'site').relative_to(_ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
