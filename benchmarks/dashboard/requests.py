"""Messages over HTTP: enqueue, receive and acknowledge, on ten connections to one web process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.harness import Bench, Figure, Result, Run, Way, expect
from benchmarks.message_queue.queues import connect
from benchmarks.release import RELEASE, checked_out
from benchmarks.web import Web, web
from dev.ports import LOOPBACK

CONNECTIONS = 10
MESSAGES = 3_000
KEY = "key-of-the-benchmark-0123456789-abcdef"
KEYS = json.dumps([{"name": "benchmark", "key": KEY, "role": "operator"}])
OPERATIONS = ("enqueue", "receive", "acknowledge")


@dataclass(frozen=True)
class Cost:
    """Seconds of one operation on all messages, and the processor time of the web process."""

    seconds: float
    web_seconds: float


Costs = dict[str, Cost]


def run(bench: Bench) -> Result:
    count = bench.sized(MESSAGES)
    with ExitStack() as stack:
        release = stack.enter_context(checked_out())
        servers = {"ours": {}} if release is None else {"ours": {}, RELEASE: {"PYTHONPATH": str(release)}}
        ways = [
            Way(
                name=name,
                run=partial(
                    _run, stack.enter_context(web(QM_API_KEYS=KEYS, QUEUE_NAME=f"http-{number}", **env)), count
                ),
                check=partial(_check, count),
                prepare=connect().flushdb,
            )
            for number, (name, env) in enumerate(servers.items())
        ]
        return bench.compare(
            "messages over HTTP",
            f"{count:,} messages on {CONNECTIONS} connections to one web process",
            ways,
            figures=[
                Figure(heading="web ms each", of=lambda run: _web_seconds(run) / count / len(OPERATIONS) * 1e3),
                *(Figure(heading=f"{name}/s", of=partial(_rate, name, count)) for name in OPERATIONS),
            ],
            notes=["The ratio is that of the processor time: the client, on the same machine, takes its share, too."],
        )


def _web_seconds(run: Run) -> float:
    costs: Costs = run.result
    return sum(cost.web_seconds for cost in costs.values())


def _rate(operation: str, count: int, run: Run) -> float:
    costs: Costs = run.result
    return count / costs[operation].seconds


def _check(count: int, costs: Costs) -> None:
    expect("operations that were measured", set(costs), set(OPERATIONS))


def _run(process: Web, count: int) -> Costs:
    payload = {"to": "ada@example.org", "subject": "Your invoice"}
    enqueue = [_request("POST", "/api/queue/message", {"type": "mail", "payload": payload})] * count
    receive = [_request("GET", "/api/queue/message?timeout=0")] * count
    added, enqueued = _measure(process, enqueue)
    taken, received = _measure(process, receive)
    expect("messages that were received", {one["id"] for one in taken}, {one["id"] for one in added})
    acknowledge = [
        _request("POST", "/api/queue/ack", {"id": one["id"], "lock_token": one["lock_token"]}) for one in taken
    ]
    _, acknowledged = _measure(process, acknowledge)
    return dict(zip(OPERATIONS, (enqueued, received, acknowledged), strict=True))


def _request(method: str, path: str, body: Any = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"X-API-KEY: {KEY}", f"Content-Length: {len(content)}"]
    return "\r\n".join([*head, "", ""]).encode() + content


def _measure(process: Web, requests: Sequence[bytes]) -> tuple[list[Any], Cost]:
    waiting, answers = list(requests), list[Any]()
    clock, began = process.clock(), time.perf_counter()
    asyncio.run(_ask_all(process.port, waiting, answers))
    cost = Cost(time.perf_counter() - began, process.clock() - clock)
    expect("answers", len(answers), len(requests))
    return [json.loads(answer) for answer in answers], cost


async def _ask_all(port: int, waiting: list[bytes], answers: list[bytes]) -> None:
    await asyncio.gather(*(_ask(port, waiting, answers) for _ in range(CONNECTIONS)))


async def _ask(port: int, waiting: list[bytes], answers: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    while waiting:
        writer.write(waiting.pop())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, _, length = head.partition(b"content-length: ")
        body = await reader.readexactly(int(length.partition(b"\r\n")[0]))
        expect("status", head.split(maxsplit=2)[1][:2], b"20")
        answers.append(body)
    writer.close()
