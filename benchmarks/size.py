"""How short the product is: lines, names, and the files that one request passes: `make size`.

A file counts for a path if one of its functions runs on it; importing it does not count.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import redis
from rich.console import Console
from rich.table import Table

from dev.servers import Mongo, Valkey

ROOT = Path(__file__).parents[1]
PRODUCT = ("beat_schedule.py", "tasks", "services", "models", "queue_manager")
LANGUAGES = (".py", ".lua", ".js", ".html", ".css")
STATIC = ROOT / "queue_manager" / "web" / "static"
ON = ("QM_CONVERSATIONS", "QM_MESSAGE_QUEUE", "QM_JOBS")


def main() -> None:
    table = Table("", "figure", "goal")
    for name, goal in (("product", "≤ 18,000"), ("tests", ""), ("dev", ""), ("benchmarks", "")):
        folders = PRODUCT if name == "product" else (name,)
        table.add_row(f"lines: {name}", f"{sum(map(_length, _files(folders))):,}", goal)
    repeated, all_names = repeated_names()
    table.add_row("capitalised names defined in several modules", f"{len(repeated)} of {all_names}", "≤ 15")
    table.add_row("a new system: files and lines", "{}, {}".format(*new_system()), "1, ≤ 26")
    for name, goal, files in _paths():
        table.add_row(f"files: {name}", str(len(files)), goal)
        print(f"{name}:", *sorted(files), sep="\n  ", file=sys.stderr)
    Console().print(table)
    print("Defined in several modules:", ", ".join(repeated))


def _files(folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        path = ROOT / folder
        found = [path] if path.is_file() else path.rglob("*")
        yield from (one for one in found if one.suffix in LANGUAGES and "node_modules" not in one.parts)


def _length(path: Path) -> int:
    return len(path.read_text().splitlines())


def repeated_names() -> tuple[list[str], int]:
    """Return the capitalised names at the top of a module that several modules define, and the number of all."""
    modules: Counter[str] = Counter()
    for path in _files(PRODUCT):
        if path.suffix == ".py":
            modules.update(set(_defined(ast.parse(path.read_text()))))
    return sorted(name for name, count in modules.items() if count > 1), len(modules)


def new_system() -> tuple[int, int]:
    """Return the numbers of files and lines of the example system in the README."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return len(blocks), sum(len(block.splitlines()) for block in blocks)


def _defined(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            continue
        yield from (name for name in names if name[0].isupper())


def _paths() -> list[tuple[str, str, set[str]]]:
    """Walk each path twice, so that what happens only once in a process is left out, and trace the second time."""
    with tempfile.TemporaryDirectory() as directory:
        with Valkey(Path(directory) / "valkey") as valkey, Mongo(Path(directory) / "mongo") as mongo:
            os.environ.update(dict.fromkeys(ON, "true"), MONGO_DB_URL=mongo.url, REDIS_URL=valkey.url)
            walks = _Walks()
            found = []
            for name, goal, walk in (
                ("scan tick to open room", "≤ 15", walks.room),
                ("HTTP enqueue to ack", "≤ 12", walks.message),
                ("jobs.run to the function", "≤ 14", walks.job),
                ("change to the page that shows it", "≤ 20", walks.page),
            ):
                walk()
                with _traced() as files:
                    walk()
                found.append((name, goal, files | (_modules_of("overview.js") if walk == walks.page else set())))
            return found


class _Walks:
    """The four paths, each in this process."""

    def __init__(self) -> None:
        from beat_schedule import systems
        from models import schema
        from queue_manager.core.settings import settings
        from queue_manager.web.app import create
        from services.job_queues import job
        from tasks import app

        job("size")(lambda: self.ran.append(1))
        self.ran: list[int] = []
        app.set_current()  # as a worker does
        app.loader.import_default_modules()
        schema.migrate(systems())
        self._app = app
        self._web = create(settings(), asyncio.Event())

    def room(self) -> None:
        from models import support_room

        past = datetime.now(UTC) - timedelta(seconds=1)
        rooms = [{"status": "snoozed", "snooze_time": {"time": past}} for _ in range(3)]
        ids = support_room.rooms().insert_many(rooms).inserted_ids
        self._scan_and_execute("support-snooze")
        assert support_room.rooms().count_documents({"_id": {"$in": ids}, "status": "open"}) == len(ids)

    def job(self) -> None:
        from services.job_queues import jobs

        before = len(self.ran)
        jobs.run("size")
        self._scan_and_execute("job-queues")
        assert len(self.ran) == before + 1

    def message(self) -> None:
        self._ask("POST", "/api/queue/message", {"type": "size", "payload": 1})
        taken = self._ask("GET", "/api/queue/message")
        self._ask("POST", "/api/queue/ack", {"id": taken["id"], "lock_token": taken["lock_token"]})

    def page(self) -> None:
        from models import support_room

        support_room.rooms().insert_one(
            {"status": "snoozed", "snooze_time": {"time": datetime(2100, 1, 1, tzinfo=UTC)}}
        )
        time.sleep(1.1)  # the last overview is kept for a second
        self._ask("GET", "/api/overview")

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the application in this thread; return the JSON of the answer."""
        answers: list[Any] = []
        sent = [{"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}]

        async def receive() -> Any:
            return sent.pop() if sent else await asyncio.Event().wait()  # the client stays connected

        async def send(message: Any) -> None:
            answers.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }

        async def answer() -> None:
            await self._web(scope, receive, send)

        asyncio.run(answer())
        start, *bodies = answers
        said = b"".join(one["body"] for one in bodies)
        assert start["status"] < 300, said
        return json.loads(said)

    def _scan_and_execute(self, name: str) -> None:
        from celery.app import trace

        from beat_schedule import SYSTEMS, find_dispatching
        from queue_manager.batching import execution

        system = find_dispatching(name, SYSTEMS)
        self._app.tasks[system.scan_task]()
        messages = []
        with redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as client:
            while taken := client.rpop(system.queue):
                message = json.loads(taken)
                messages.append((message["headers"]["id"], message["headers"], json.loads(message["body"])))
        task = self._app.tasks[str(system.item_task)]
        if task.work().batch_function is not None:
            ended: list[Any] = [*execution.run(task.name, messages)]
        else:
            ended = [trace.trace_task_ret(task.name, *message, None, None) for message in messages]
        assert ended
        for failed, value, _ in ended:
            assert not failed, value


@contextmanager
def _traced() -> Iterator[set[str]]:
    """Collect the product's files of which a function is called within, in any thread."""
    files: set[str] = set()
    product = tuple(str(ROOT / folder) for folder in PRODUCT)

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(product) and code.co_name != "<module>":
            files.add(str(Path(code.co_filename).relative_to(ROOT)))

    threading.setprofile(note)  # for the threads that routes run in
    sys.setprofile(note)
    try:
        yield files
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


def _modules_of(name: str) -> set[str]:
    """Return the JavaScript module and those that it imports."""
    found, left = set[str](), [name]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += re.findall(r'from "\./([\w.-]+)"', (STATIC / one).read_text())
    return {str((STATIC / one).relative_to(ROOT)) for one in found}


if __name__ == "__main__":
    main()
