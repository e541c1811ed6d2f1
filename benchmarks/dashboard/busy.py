"""The page of messages while many messages change each second: what it costs the browser, and its longest task."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from typing import Any

from playwright.sync_api import Browser

from benchmarks.dashboard.browser import PAGE_TIMEOUT, opened_page, started
from benchmarks.harness import Bench, Figure, Result, Way, WrongResult
from benchmarks.message_queue.queues import Queue, connect, messages, queue_options
from benchmarks.web import web
from dev.ports import LOOPBACK
from queue_manager.core.settings import settings
from services.message_queue import NewMessage
from services.message_queue.scripts import source

RATES = (100, 1_000)
"""Messages added per second, each by itself."""
DURATION, DURATION_QUICK = 10.0, 3.0  # seconds
WAITING, ROWS = 1_000, 50
SETTLED = 2.0  # seconds
MAX_BATCH_SIZE = 50  # messages that one round trip adds at most
MIN_REACHED = 0.9  # of the rate
TASKS = "toplevel"  # category of a trace
TASK, MAIN_THREAD = "ThreadControllerImpl::RunTask", "CrRendererMain"

WATCH_TASKS = """() => {
  globalThis.longest = 0;
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) longest = Math.max(longest, duration);
  }).observe({ type: "longtask" });
}"""
SHOWS = "(id) => document.querySelector('#rows > tr')?.dataset.id === id"


def run(bench: Bench, *, path: str) -> Result:
    """Measure with the browser at `path`."""
    queue = Queue(settings().queue_name, connect())
    queue.client.flushall()
    queue.fill(messages(WAITING))
    duration = DURATION_QUICK if bench.is_quick else DURATION
    numbers = count()
    with web() as process, started(path) as browser:
        url = f"http://{LOOPBACK}:{process.port}/messages"
        return bench.compare(
            "dashboard, many changes a second",
            f"messages added one by one for {duration:.0f} s while the page shows the newest {ROWS}",
            [
                Way(
                    name=f"{rate:,} a second",
                    run=partial(_measure, browser, url, partial(_add, queue, rate, duration, numbers)),
                    check=partial(_check, rate * duration),
                )
                for rate in RATES
            ],
            figures=[
                Figure(heading="% of a core", of=lambda run: run.result["share"] * 100),
                Figure(heading="longest task, CPU ms", of=lambda run: run.result["longest_cpu"]),
                Figure(heading="longest task above 50 ms, ms", of=lambda run: run.result["longest"]),
            ],
            compared="times 100 a second",
            rounds=1 if bench.is_quick else 3,
            warm_up=False,
            notes=[
                "The processor time of the page's main thread, and of its longest task. The time that a task took also",
                "depends on what else the machine did. 0: no task took 50 ms.",
            ],
        )


def _measure(browser: Browser, url: str, add: Callable[[], tuple[int, str]]) -> dict[str, float]:
    with closing(browser.new_context()) as context:
        page = opened_page(context, url, rows=ROWS)
        time.sleep(SETTLED)
        page.evaluate(WATCH_TASKS)
        session: Any = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        browser.start_tracing(categories=[TASKS])
        spent, began = _task_seconds(session), time.monotonic()
        added, last = add()
        share = (_task_seconds(session) - spent) / (time.monotonic() - began)
        page.wait_for_function(SHOWS, arg=last, timeout=PAGE_TIMEOUT)
        longest_cpu = _longest_cpu(json.loads(browser.stop_tracing())["traceEvents"])
        longest = float(page.evaluate("() => longest"))
        return {"share": share, "longest": longest, "longest_cpu": longest_cpu, "added": added}


def _task_seconds(session: Any) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


def _longest_cpu(events: list[dict[str, Any]]) -> float:
    """Return the processor time in ms of the longest task of a page's main thread."""
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == MAIN_THREAD
    }
    tasks = (event for event in events if event["name"] == TASK and (event["pid"], event["tid"]) in threads)
    return max(float(task.get("tdur", 0)) for task in tasks) / 1000


def _add(queue: Queue, rate: int, duration: float, numbers: Iterator[int]) -> tuple[int, str]:
    """Add messages at the rate, each by its own script; return how many, and the id of the last."""
    sha, options = str(queue.client.script_load(source("enqueue"))), queue_options()
    began, added, id = time.monotonic(), 0, ""
    while (passed := time.monotonic() - began) < duration:
        with queue.client.pipeline(transaction=False) as pipe:
            for _ in range(min(int(passed * rate) - added, MAX_BATCH_SIZE)):
                message = NewMessage(type="send_mail", payload={"to": "ada@example.org"}, id=f"busy-{next(numbers)}")
                arguments = message.arguments(options)
                pipe.evalsha(sha, 1, queue.name, *arguments)
                id = arguments[0]
                added += 1
            pipe.execute()
        time.sleep(0.001)
    return added, id


def _check(wanted: float, result: dict[str, float]) -> None:
    if result["added"] < wanted * MIN_REACHED:
        raise WrongResult(f"only {result['added']:.0f} of {wanted:.0f} messages were added in time")
