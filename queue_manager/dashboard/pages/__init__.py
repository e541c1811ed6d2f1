"""The pages for people: templates filled in here, and the static files they load. Nothing comes from another host."""

from __future__ import annotations

from pathlib import Path
from string import Template

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from queue_manager.dashboard.access import viewer

HERE = Path(__file__).parent
OPEN = "Nothing has woken since you opened this page. Snooze a room for a few seconds, and it appears here."
CLOSED = (
    "Nothing has woken since you opened this page. It listens to the accounts that your token names: "
    "open it as /#token=… with a token that SOCKETIO_TOKEN_SECRET signed."
)


def install(api: FastAPI, *, needs_token: bool) -> None:
    """Serve the pages. `needs_token` decides what the page says to do when it has nothing to show."""
    rooms = Template((HERE / "rooms.html").read_text(encoding="utf-8"))
    content = rooms.substitute(nothing_yet=CLOSED if needs_token else OPEN)

    @api.get("/", dependencies=[viewer], include_in_schema=False)
    async def live_rooms() -> HTMLResponse:
        return HTMLResponse(content)

    api.mount("/static", StaticFiles(directory=HERE / "static"))
