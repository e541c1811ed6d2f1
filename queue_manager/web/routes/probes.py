"""`/healthz`: the process lives. `/readyz`: it can also do its work, or why not, within about 2 s."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from queue_manager.web.readiness import Readiness

router = APIRouter()
_readiness = Readiness()


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/readyz")
async def readyz() -> JSONResponse:
    """Return 200 when every server that this process needs takes a write."""
    reasons = await _readiness.problems()
    if reasons:
        body = {"error": "not ready", "message": "; ".join(reasons), "reasons": reasons}
        return JSONResponse(body, status_code=HTTPStatus.SERVICE_UNAVAILABLE)
    return JSONResponse({"status": "ok"})
