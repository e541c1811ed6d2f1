"""Code of other libraries that we override, read or rebuild has not changed since we last compared it.

After an upgrade a failing test names the functions that changed. Compare each with our side, then write the new hashes:
`python -m tests.test_upstream`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name, walk_packages
from typing import Any

from tests.test_architecture import ROOT, sources

PINS = Path(__file__).with_suffix(".json")
UPSTREAM = ("kombu", "celery", "redbeat", "redis", "socketio", "engineio", "billiard")
PACKAGES = ("queue_manager.broker", "queue_manager.batching", "queue_manager.beat", "queue_manager.web.live")
CLIENTS = "queue_manager.core.redis_client"  # its connections are those of the broker
FOLDERS = tuple(f"{package.replace('.', '/')}/" for package in PACKAGES)

# The private names of other libraries that we use, and what gives them their meaning there.
READ = {
    "_already_cancelled": "celery.worker.request:Request._announce_cancelled",
    "_already_revoked": "celery.worker.request:Request._announce_revoked",
    "_callbacks": "kombu.transport.virtual.base:Transport._deliver",
    "_channels": "kombu.transport.redis:MultiChannelPoller.__init__",
    "_deliver": "kombu.transport.virtual.base:Transport._deliver",
    "_delivered": "kombu.transport.virtual.base:QoS.append",
    "_dirty": "kombu.transport.virtual.base:QoS._flush",
    "_eta_timer_entry": "celery.worker.strategy:default",
    "_fd_to_chan": "kombu.transport.redis:MultiChannelPoller._register",
    "_flush": "kombu.transport.virtual.base:QoS._flush",
    "_flush_brpop_reauth": "kombu.transport.redis:Channel._flush_brpop_reauth",
    "_get_exec_options": "celery.app.task:Task._get_exec_options",
    "_get_message_priority": "kombu.transport.virtual.base:Channel._get_message_priority",
    "_get_publish_topics": "kombu.transport.redis:Channel._get_publish_topics",
    "_group_buffer": "celery.events.dispatcher:EventDispatcher.__init__",
    "_in_poll": "kombu.transport.redis:Channel._brpop_start",
    "_maximum_prefetch_restored": "celery.worker.consumer.consumer:Consumer.create_task_handler",
    "_lookup": "kombu.transport.virtual.base:Channel._lookup",
    "_maybe_update_queues_expire": "kombu.transport.redis:Channel._maybe_update_queues_expire",
    "_outbound_buffer": "celery.events.dispatcher:EventDispatcher.extend_buffer",
    "_parser": "redis.connection:AbstractConnection.set_parser",
    "_payload": "celery.worker.request:Request._payload",
    "_process_by_pid": "billiard.pool:TimeoutHandler._process_by_pid",
    "_process_task": "celery.worker.worker:WorkController._process_task",
    "_process_task_sem": "celery.worker.worker:WorkController._process_task_sem",
    "_q_for_pri": "kombu.transport.redis:Channel._q_for_pri",
    "_qos": "kombu.transport.virtual.base:Channel.qos",
    "_queue_cycle": "kombu.transport.redis:Channel.__init__",
    "_quick_acquire": "celery.worker.components:Pool.create",
    "_quick_release": "celery.worker.components:Pool.create",
    "_register_BRPOP": "kombu.transport.redis:MultiChannelPoller._register_BRPOP",
    "_size": "kombu.transport.redis:Channel._size",
    "_sock": "redis.connection:AbstractConnection.disconnect",
    "_terminate_on_ack": "celery.worker.request:Request.terminate",
    "_worker_pid": "billiard.pool:ApplyResult._ack",
}
# What we rebuild, or whose arguments and results we rely on, without a private name that would show it.
REBUILT = (
    "celery.app.base:Celery.now",
    "celery.app.base:Celery.send_task",
    "celery.app.base:Celery.uses_utc_timezone",
    "celery.app.task:Task.apply_async",
    "celery.app.trace:build_tracer",
    "celery.app.trace:fast_trace_task",
    "celery.app.trace:task_has_custom",
    "celery.app.trace:trace_task_ret",
    "celery.events.event:group_from",
    "celery.worker.consumer.consumer:Consumer.apply_eta_task",
    "celery.worker.request:create_request_cls",
    "celery.worker.request:Request.on_accepted",
    "celery.worker.request:Request.on_success",
    "celery.worker.state:task_accepted",
    "celery.worker.state:task_ready",
    "celery.worker.strategy:default",
    "kombu.connection:Connection._init_params",
    "kombu.message:Message.__init__",
    "kombu.transport:resolve_transport",
    "kombu.transport.redis:MultiChannelPoller._register_BRPOP",
    "redbeat.schedulers:get_redis",
    "socketio.async_pubsub_manager:AsyncPubSubManager.initialize",
    "socketio.async_server:AsyncServer._handle_eio_connect",
    "socketio.pubsub_manager:PubSubManager.emit",
)
NOT_OURS = {"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__orig_bases__", "__parameters__"}


def overrides() -> dict[str, str]:
    """Return each method of another library that a class of ours replaces, and by which."""
    found = {}
    for module in modules():
        for name, kind in vars(module).items():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                for attribute in vars(kind).keys() - NOT_OURS:
                    if theirs := replaced(kind, attribute):
                        found[theirs] = f"{module.__name__}.{name}.{attribute}"
    return found


def modules() -> Iterator[Any]:
    for package in map(importlib.import_module, PACKAGES):
        for info in walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(info.name)
    yield importlib.import_module(CLIENTS)


def replaced(kind: type, attribute: str) -> str | None:
    """Return the nearest function of another library that an attribute of a class hides."""
    for base in kind.__mro__[1:]:
        is_theirs = base.__module__.split(".")[0] in UPSTREAM
        if is_theirs and attribute in vars(base) and function_of(vars(base)[attribute]):
            name = base.__qualname__.removeprefix(f"{base.__module__}.")  # which Celery's steps have in it
            return f"{base.__module__}:{name}.{attribute}"
    return None


def function_of(member: Any) -> Any:
    """Return the function behind a method, a property or a cached property; `None` for data."""
    for name in ("__func__", "fget", "func"):
        member = getattr(member, name, member)
    return inspect.unwrap(member) if inspect.isfunction(member) else None


def pinned() -> dict[str, str]:
    """Return the hash of each function of another library that we depend on."""
    return {path: hash_of(path) for path in sorted({*overrides(), *READ.values(), *REBUILT})}


def hash_of(path: str) -> str:
    module, _, name = path.partition(":")
    owner, _, attribute = name.rpartition(".")
    holder = resolve_name(f"{module}:{owner}") if owner else importlib.import_module(module)
    source = inspect.getsource(function_of(inspect.getattr_static(holder, attribute)))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def private_names(path: Path) -> Iterator[str]:
    """Give the private names that a file uses and does not define."""
    tree = ast.parse(path.read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            used |= {str(one.value) for one in node.args[1:2] if isinstance(one, ast.Constant)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UPSTREAM:
            used |= {part for alias in node.names for part in f"{node.module}.{alias.name}".split(".")}
    yield from sorted(name for name in used - defined(tree) if name.startswith("_") and not name.endswith("__"))


def defined(tree: ast.Module) -> set[str]:
    """Return the names that a module defines or assigns, also as an attribute of `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
    return names


def own_names() -> set[str]:
    """Return every private name that some file of ours defines, other than those that are also another library's."""
    return {name for path in sources() for name in defined(ast.parse(path.read_text()))} - set(READ)


def test_no_function_that_we_depend_on_has_changed() -> None:
    known, found, ours = json.loads(PINS.read_text()), pinned(), overrides()
    changed = [f"{path} ({ours.get(path, 'used')})" for path in found if known.get(path, found[path]) != found[path]]
    assert changed == [], "compare each with our side, then run `python -m tests.test_upstream`"


def test_every_override_is_pinned_and_nothing_else() -> None:
    assert set(json.loads(PINS.read_text())) == set(pinned()), "run `python -m tests.test_upstream`"


def test_every_private_name_of_another_library_is_pinned() -> None:
    files = [path for path in sources() if may_use_private_parts(path)]
    assert {name for path in files for name in private_names(path)} - own_names() == set(READ)


def test_no_other_package_uses_a_private_name_of_another_library() -> None:
    others = [path for path in sources() if not may_use_private_parts(path)]
    used = {name for path in others for name in private_names(path)} - own_names()
    assert used == set()


def may_use_private_parts(path: Path) -> bool:
    return str(path.relative_to(ROOT)).startswith(FOLDERS)


if __name__ == "__main__":
    PINS.write_text(json.dumps(pinned(), indent=2) + "\n")
