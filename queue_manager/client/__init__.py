"""A client of the HTTP API of Queue Manager, for messages, jobs and systems.

    with Client("http://127.0.0.1:6002", api_key="…") as client:
        client.messages.enqueue("send_mail", {"to": "ada@example.org"})

It needs httpx2 and msgspec and no other part of Queue Manager. It is also distributed alone, as `queue-manager-client`.
`AsyncClient` has the same operations as coroutines and asynchronous iterators.
"""

try:
    import httpx2 as _httpx2  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "httpx2":
        raise
    hint = "queue_manager.client needs httpx2: run pip install 'queue-manager[client]'"
    raise ModuleNotFoundError(hint, name=error.name) from error

from queue_manager.client.clients import AsyncClient, Client
from queue_manager.client.errors import ClientError
from queue_manager.client.exchanges import ServerEvent
from queue_manager.client.jobs import JobEntry, JobQueue, StoredJob
from queue_manager.client.messages import MessageCounts, OutgoingMessage, ReplayCount
from queue_manager.client.received_messages import AsyncReceivedMessage, MessageEntry, ReceivedMessage, StoredMessage
from queue_manager.client.systems import (
    DurationStats,
    OnTimeShare,
    RetriedCount,
    SystemItem,
    SystemLatency,
    SystemProblem,
    SystemScan,
    SystemStatus,
)

__all__ = [
    "AsyncClient",
    "AsyncReceivedMessage",
    "Client",
    "ClientError",
    "DurationStats",
    "JobEntry",
    "JobQueue",
    "MessageCounts",
    "MessageEntry",
    "OnTimeShare",
    "OutgoingMessage",
    "ReceivedMessage",
    "ReplayCount",
    "RetriedCount",
    "ServerEvent",
    "StoredJob",
    "StoredMessage",
    "SystemItem",
    "SystemLatency",
    "SystemProblem",
    "SystemScan",
    "SystemStatus",
]
