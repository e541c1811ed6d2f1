"""HTML from the templates in `templates`. Values are escaped: they are text, never markup."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from queue_manager.web.http.responses import NO_STORE

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def rendered(template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> HTMLResponse:
    """Return the page that `template` makes of `values`. It says who looks, so no cache may show it to the next one."""
    return HTMLResponse(_templates.get_template(template).render(values), status_code=status, headers=NO_STORE)
