"""A small server of the product: Socket.IO on Redis, on the port given; a client joins the room that it names."""

from __future__ import annotations

import sys

import socketio
import uvicorn

from queue_manager.core.settings import settings

server = socketio.AsyncServer(async_mode="asgi", client_manager=socketio.AsyncRedisManager(settings().redis_url))


@server.event
async def join(sid: str, room: str) -> str:
    await server.enter_room(sid, room)
    return "joined"


uvicorn.run(socketio.ASGIApp(server), port=int(sys.argv[1]), log_level="warning", ws="wsproto")
