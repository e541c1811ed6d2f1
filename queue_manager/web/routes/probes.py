"""`/healthz`: the process lives. `/readyz`: it can also do its work, or why not, within about 2 s."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from queue_manager.web.http.errors import Error
from queue_manager.web.readiness import Readiness

router = APIRouter()
_readiness = Readiness()


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class NotReady(Error):
    """Servers that the process needs do not take writes."""

    reasons: list[str] = Field(description="One sentence per server.")


@router.get("/healthz")
async def healthz() -> Alive:
    """Return 200 while the process lives."""
    return Alive()


@router.get("/readyz", response_model=Alive, responses={503: {"model": NotReady, "description": "Not ready"}})
async def readyz() -> JSONResponse | Alive:
    """Return 200 when every server that this process needs takes a write."""
    reasons = await _readiness.problems()
    if not reasons:
        return Alive()
    problem = NotReady(error="not ready", message="; ".join(reasons), reasons=reasons)
    return JSONResponse(problem.model_dump(), status_code=HTTPStatus.SERVICE_UNAVAILABLE)
