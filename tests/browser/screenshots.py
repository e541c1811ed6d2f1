"""The screenshots of the dashboard in the documentation, renewed from a running `make up`.

python -m tests.browser.screenshots [URL]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.browser.chromium import chromium

DOCS = Path(__file__).parents[2] / "docs"
SETTLING = 2_000  # ms until all figures of a page are shown


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One file in `docs`."""

    name: str
    path: str
    width: int
    height: int
    scheme: Literal["dark", "light"]
    content: str
    """Selector of what must be seen."""


PICTURES = (
    Picture(name="overview-light", path="/", width=1280, height=800, scheme="light", content=".plot"),
    Picture(name="overview-dark", path="/", width=1280, height=800, scheme="dark", content=".plot"),
    Picture(
        name="messages-phone", path="/messages/processing", width=360, height=740, scheme="light", content="#rows > tr"
    ),
)


def take(url: str) -> None:
    with chromium() as browser:
        for picture in PICTURES:
            page = browser.new_page(
                viewport={"width": picture.width, "height": picture.height},
                color_scheme=picture.scheme,
                reduced_motion="reduce",
            )
            page.goto(url + picture.path)
            page.wait_for_timeout(SETTLING)
            page.locator(picture.content).first.wait_for()
            page.screenshot(path=DOCS / f"{picture.name}.png")
            page.close()


if __name__ == "__main__":
    take(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:6002")
