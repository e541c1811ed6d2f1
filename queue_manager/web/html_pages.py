"""HTML pages from the templates in `templates`. Values are escaped."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from beat_schedule import systems
from queue_manager.core.settings import settings
from queue_manager.system import SCHEDULE_PAGE

if TYPE_CHECKING:  # the log-in page renders, too
    from queue_manager.web.auth.authentication import Principal

WORKERS_PAGE = "/workers"
_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


class Link(NamedTuple):
    path: str
    title: str


PAGES_OF_ALL = (
    Link("/failures", "Failures"),
    Link(SCHEDULE_PAGE, "Schedule"),
    Link(WORKERS_PAGE, "Workers"),
    Link("/audit", "Audit"),
)


def render(template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> HTMLResponse:
    """Return a page."""
    chosen = settings()
    environment = chosen.app_env if "app_env" in chosen.model_fields_set else None
    html = _templates.get_template(template).render(values, prefix=chosen.web_prefix, environment=environment)
    return HTMLResponse(html, status_code=status)


def render_page(
    template: str, request: Request, principal: Principal | None, *, status: HTTPStatus = HTTPStatus.OK, **values: Any
) -> HTMLResponse:
    """Return a page with the navigation and the principal, `None` if nobody is authenticated."""
    listed = [system for system in systems() if principal is None or principal.has_system(system.name)]
    pages = [Link("/", "Overview"), *(Link(one.page, one.title) for one in listed if one.page != SCHEDULE_PAGE)]
    is_for_all = principal is None or principal.has_system(None)
    pages += PAGES_OF_ALL if is_for_all else [Link(WORKERS_PAGE, "Workers")]
    path = request.url.path
    here = next((page.path for page in pages[1:] if f"{path}/".startswith(f"{page.path}/")), path)
    return render(template, status=status, nav=pages, here=here, principal=principal, **values)
