"""Collects what the site is built from: the pages of `docs/`, and every file of the repository that they link to.

Pages outside `docs/` are copied to `project/`. A linked source file becomes a page that shows it, so that the site has
no link that leaves it for the repository. The Markdown stays as GitHub reads it; differences are adapted in the copy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from dev.site.markdown import outside_fences, relative_links, with_links, without_comments

_LANGUAGES = {".py": "python", ".md": "markdown", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".lua": "lua"}
_IMAGES = (".png", ".svg")


def stage(root: Path, target: Path, generated: Mapping[str, str]) -> list[Path]:
    """Write every page and image to `target`, and `generated` by path. Returns the files that were copied.

    Raises:
        FileNotFoundError: a link leads to no file.
    """
    for path, text in generated.items():
        _write(target / path, text)
    waiting = sorted((root / "docs").rglob("*.md"))
    staged: list[Path] = []
    while waiting:
        file = waiting.pop()
        if file in staged:
            continue
        staged.append(file)
        written = target / site_path(root, file)
        if file.suffix in _IMAGES:
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_bytes(file.read_bytes())
        elif file.suffix == ".md" or file.is_dir():
            page, text = (file / "index.md", _listing(file)) if file.is_dir() else (file, file.read_text())
            waiting += [_linked(root, page, link) for link in relative_links(text) if not link.startswith("#")]
            _write(written, _adapted(with_links(text, lambda link, page=page: on_site(root, page, link))))  # type: ignore[misc]
        else:
            _write(written, _source_page(root, file))
    return staged


def site_path(root: Path, file: Path) -> Path:
    """Return where a file of the repository is on the site."""
    path = file.relative_to(root)
    if path.is_relative_to("docs"):
        path = path.relative_to("docs")
        return path.with_name("index.md") if path.name == "README.md" else path
    if file.is_dir():
        return "project" / path / "index.md"
    if path.suffix in (".md", *_IMAGES):
        return "project" / path
    return Path("source", f"{path}.md".lstrip("."))  # Zensical leaves hidden files out


def _linked(root: Path, page: Path, link: str) -> Path:
    target = (page.parent / link.partition("#")[0]).resolve()
    for index in ("README.md", "__init__.py"):
        if (target / index).is_file():
            target /= index
    if not target.exists() or not target.is_relative_to(root):
        raise FileNotFoundError(f"{page.relative_to(root)}: no file for the link {link}")
    return target


def on_site(root: Path, page: Path, link: str) -> str:
    """Return the link of a page as it is on the site."""
    if link.startswith("#"):
        return link
    target = site_path(root, _linked(root, page, link))
    anchor = link.partition("#")[2]
    return os.path.relpath(target, site_path(root, page).parent) + (f"#{anchor}" if anchor else "")


def _adapted(text: str) -> str:
    """Return a page for Python-Markdown: without comments, and with the content of list items indented by four."""
    lines: list[str] = []
    is_in_list = False
    for line in outside_fences(text, without_comments).splitlines():
        if re.match(r"\d+\. ", line):
            lines += [""] if is_in_list and lines[-1] else []
            is_in_list = True
        elif line and not line.startswith(" "):
            is_in_list = False
        lines.append(f" {line}" if is_in_list and line.startswith("   ") else line)
    return "\n".join(lines) + "\n"


def _listing(directory: Path) -> str:
    """Return a page that lists the files of a directory, for a link to it."""
    files = sorted(file.relative_to(directory) for file in directory.rglob("*") if file.is_file())
    return f"# {directory.name}\n\n" + "".join(f"- [{file}]({file})\n" for file in files)


def _source_page(root: Path, file: Path) -> str:
    language = _LANGUAGES.get(file.suffix, "text")
    return f"# {file.relative_to(root)}\n\n````{language}\n{file.read_text()}````\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
