"""What each page loads of script and style, following imports: bytes of the files, and as they are sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urljoin

from benchmarks.harness import Table
from benchmarks.web import Client

PAGES = ("/", "/rooms", "/messages", "/jobs", "/schedule", "/docs")
LOADED = re.compile(r'<script[^>]* src="([^"]+)"|<link rel="stylesheet" href="([^"]+)"')
IMPORTED = re.compile(r'(?:\bfrom|\bimport)\s*\(?"(\.[^"]+)"')


@dataclass(frozen=True)
class File:
    """Bytes of a file, and of what is sent to those who accept gzip."""

    path: str
    raw: int
    sent: int


def table(client: Client) -> Table:
    headings = ["page", "files", "script, bytes", "style, bytes", "both", "script, gzipped", "style, gzipped", "both"]
    return Table(
        caption="Script and style of a page, all that it loads; at most 60 kB are meant to be:",
        headings=headings,
        rows=[_row(page, _files(client, page)) for page in PAGES],
    )


def _row(page: str, files: list[File]) -> list[str]:
    scripts = [file for file in files if file.path.endswith(".js")]
    styles = [file for file in files if file.path.endswith(".css")]
    raw = [sum(file.raw for file in some) for some in (scripts, styles, files)]
    sent = [sum(file.sent for file in some) for some in (scripts, styles, files)]
    return [page, str(len(files)), *(f"{size:,}" for size in (*raw, *sent))]


def _files(client: Client, page: str) -> list[File]:
    """Return everything that a page loads, each file once."""
    html = client.get(page).body.decode()
    waiting = [script or style for script, style in LOADED.findall(html)]
    files: dict[str, File] = {}
    while waiting:
        path = waiting.pop()
        if path not in files:
            text = client.get(path).body
            files[path] = File(path, len(text), len(client.get(path, accept_encoding="gzip").body))
            waiting += _imports(path, text.decode())
    return list(files.values())


def _imports(path: str, text: str) -> Iterator[str]:
    for name in IMPORTED.findall(text) if path.endswith(".js") else []:
        yield urljoin(path, name)
