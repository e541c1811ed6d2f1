"""`/healthz`: the process lives. `/readyz`: it can also do its work, or why not, within about 3 s."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from queue_manager.dashboard.servers import Unavailable, ping_mongodb, ping_redis

router = APIRouter()


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/readyz")
async def readyz() -> JSONResponse:
    """Ask both servers at once, in threads: a server that hangs holds up nobody else."""
    answers = await asyncio.gather(*(run_in_threadpool(_problem, ping) for ping in (ping_mongodb, ping_redis)))
    reasons = [answer for answer in answers if answer is not None]
    if reasons:
        body = {"error": "not ready", "message": "; ".join(reasons), "reasons": reasons}
        return JSONResponse(body, status_code=HTTPStatus.SERVICE_UNAVAILABLE)
    return JSONResponse({"status": "ok"})


def _problem(ping: Callable[[], None]) -> str | None:
    try:
        ping()
    except Unavailable as error:
        return str(error)
    return None
