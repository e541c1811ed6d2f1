"""HTML from the templates of `pages/templates`. Whatever is put into one is text, never markup."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

# A page says who looks at it and which systems there are, so no cache may show it to the next one.
HEADERS = {"cache-control": "no-store"}

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "pages" / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def rendered(template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> HTMLResponse:
    """Return the page that `template` makes of `values`."""
    return HTMLResponse(_templates.get_template(template).render(values), status_code=status, headers=HEADERS)
