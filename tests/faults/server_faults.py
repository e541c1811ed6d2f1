"""Faults of Redis and MongoDB, and of the deliveries of messages to workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Event

import redis
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from models import database
from queue_manager.broker.keys import UNACKED
from queue_manager.core.background import in_thread
from queue_manager.core.clock import seconds
from tests.e2e.replica_set import Member
from tests.eventually import eventually
from tests.faults import clocks, isolation
from tests.faults.faults import Fault, kind
from tests.faults.process_faults import PROCESSES, frozen
from tests.faults.world import World

DELAYS = (0.02, 0.1, 0.3)  # seconds for what one side sends at once
CLOCKS = (-3_600, -5, 5)  # seconds; what is stored while a clock is ahead is due later by as much
# An hour back for a few seconds stops MongoDB for up to five minutes, until its timers look at the clock again.
MONGODB_CLOCKS = (-5, 5)  # seconds
ANSWER_TIMEOUT = seconds(1)
MAJORITY_WITHIN = 60.0  # seconds
QUEUES = ("support-snooze", "jobs", "scans")
REDIS, MONGODB, DELIVERIES = ("redis",), ("mongodb",), ("deliveries",)


# Redis


@kind(REDIS, (0.3, 4), names="Redis", weight=3)
def kill_redis(world: World, _: Fault) -> Iterator[None]:
    """SIGKILL to Redis; it has its data when it is back."""
    world.redis.kill()
    try:
        yield
    finally:
        world.redis.start()


@kind(REDIS, (0.3, 3), names="Redis", weight=2)
def restart_redis_empty(world: World, _: Fault) -> Iterator[None]:
    world.lose_data(restart=True)
    try:
        yield
    finally:
        world.redis.start()


@kind(REDIS, (0.1, 0.2), weight=2)
def flush_redis(world: World, _: Fault) -> Iterator[None]:
    world.lose_data(restart=False)
    yield


@kind(REDIS, (0.5, 4), names="Redis", weight=2)
def fill_redis(world: World, _: Fault) -> Iterator[None]:
    """Redis refuses every command that needs memory."""
    with world.connect() as client:
        client.config_set("maxmemory", "1mb")
        try:
            yield
        finally:
            client.config_set("maxmemory", "0")


@kind(REDIS, (1, 6), weight=2)
def slow_redis(world: World, fault: Fault) -> Iterator[None]:
    for proxy in world.proxies:
        proxy.delay = float(fault.one_of(*DELAYS))
    try:
        yield
    finally:
        for proxy in world.proxies:
            proxy.delay = 0.0


@kind(REDIS, (0.5, 5), names="Redis", weight=2)
def cut_off_redis_one_way(world: World, fault: Fault) -> Iterator[None]:
    """Nothing that one side sends arrives, until the network is well again."""
    with ExitStack() as stack:
        for proxy in world.proxies:
            stack.enter_context((proxy.to_server if fault.chance < 0.5 else proxy.to_client).held_back())
        yield


@kind(PROCESSES, (1, 7), weight=3)
def cut_off_process_from_redis(world: World, fault: Fault) -> Iterator[None]:
    """Nothing passes between one process and Redis, until the network is well again."""
    proxy = world.processes[fault.target].proxy
    with proxy.to_server.held_back(), proxy.to_client.held_back():
        yield


@kind(REDIS, (0.1, 0.2), weight=1)
def close_connections_to_redis(world: World, _: Fault) -> Iterator[None]:
    for proxy in world.proxies:
        proxy.close_connections()
    yield


@kind(REDIS, (0.5, 5), names="Redis", weight=2)
def freeze_redis(world: World, _: Fault) -> Iterator[None]:
    yield from frozen([world.redis.pid])


@kind(REDIS, (3, 8), weight=2)
def fail_over_redis(world: World, _: Fault) -> Iterator[None]:
    """A replica becomes the primary; the old primary becomes its replica, and keeps its connections for a while."""
    old = world.fail_over()
    try:
        yield
    finally:
        old.kill()
        isolation.remove_disk(old.directory)


@kind(REDIS, (1, 6), names="Redis", weight=3, needs=isolation.is_entered)
def fill_disk_of_redis(world: World, _: Fault) -> Iterator[None]:
    """Redis cannot write to its append-only file, and refuses every write until it can."""
    with isolation.full_disk(world.redis.directory):
        yield
    with world.connect() as client:  # a restart may refuse the file as it is: writes of it failed halfway
        eventually(client.bgrewriteaof, within=30)
        eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"], within=30)
        assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"


@kind(REDIS, (2, 8), weight=2, needs=clocks.is_possible)
def wrong_clock_of_redis(world: World, fault: Fault) -> Iterator[None]:
    """The clock of Redis jumps, and back."""
    clock = world.redis.clock
    clock.set(float(fault.one_of(*CLOCKS)))
    try:
        yield
    finally:
        clock.set(0)


# MongoDB


@kind(
    MONGODB,
    (2, 8),
    weight=3,
    needs=clocks.is_possible,
    may_outlast_leases=True,
    sets_clock_of_rooms=True,
    since=1_100,
)
def wrong_clock_of_mongodb(world: World, fault: Fault) -> Iterator[None]:
    """The clocks of all members jump, and back. Leases of jobs may be over at once, as MongoDB's clock is theirs."""
    shift = float(fault.one_of(*MONGODB_CLOCKS))
    for clock in world.mongodb_clocks:
        clock.set(shift)
    try:
        yield
    finally:
        for clock in world.mongodb_clocks:
            clock.set(0)


@kind(MONGODB, (0.5, 4), weight=3, may_outlast_leases=True)
def kill_primary(world: World, _: Fault) -> Iterator[None]:
    yield from _killed(world, [eventually(world.mongo.primary)])


@kind(MONGODB, (0.5, 4), weight=1)
def kill_secondary(world: World, _: Fault) -> Iterator[None]:
    yield from _killed(world, _secondaries(world)[:1])


@kind(MONGODB, (2, 5), weight=2, names="MongoDB", may_outlast_leases=True)
def kill_majority(world: World, fault: Fault) -> Iterator[None]:
    """Two of three members are killed, the primary among them or not."""
    secondaries = _secondaries(world)
    others = [eventually(world.mongo.primary), secondaries[0]]
    yield from _killed(world, secondaries if fault.chance < 0.5 else others)


@kind(MONGODB, (0.5, 1), weight=3, may_outlast_leases=True)
def step_down_primary(world: World, _: Fault) -> Iterator[None]:
    world.mongo.step_down()
    yield
    _wait_for_majority()


@kind(MONGODB, (1, 7), weight=2, may_outlast_leases=True)
def freeze_primary(world: World, _: Fault) -> Iterator[None]:
    primary = eventually(world.mongo.primary)
    yield from frozen([primary.pid])
    _wait_for_majority()


@kind(PROCESSES, (1, 7), weight=4, needs=isolation.is_entered, may_outlast_leases=True)
def cut_off_process_from_mongodb(world: World, fault: Fault) -> Iterator[None]:
    """Nothing passes between one process and MongoDB: its primary, or all of its members."""
    members = [eventually(world.mongo.primary)] if fault.chance < 0.5 else world.mongo.members
    with isolation.cut_off([fault.target], [member.port for member in members]):
        yield


@kind(MONGODB, (1, 7), weight=3, needs=isolation.is_entered, may_outlast_leases=True)
def cut_off_primary_from_secondaries(world: World, _: Fault) -> Iterator[None]:
    """The clients reach all members, and the primary does not know yet that the others elect another."""
    primary, secondaries = eventually(world.mongo.primary), _secondaries(world)
    others = [member.port for member in secondaries]
    with isolation.cut_off([primary.port], others), isolation.cut_off(others, [primary.port]):
        yield
    _wait_for_majority()


@kind(MONGODB, (1, 5), weight=3, needs=isolation.is_entered, may_outlast_leases=True)
def fill_disk_of_mongodb(world: World, fault: Fault) -> Iterator[None]:
    """The disk of the primary or of a secondary is full. The member ends when it cannot write, and is started again."""
    member: Member = eventually(world.mongo.primary) if fault.chance < 0.5 else _secondaries(world)[0]
    with isolation.full_disk(member.directory):
        world.mongo.write_to_disk(member)
        yield
    if not member.is_running:
        member.start()
    _wait_for_majority()


def _wait_for_majority() -> None:
    """Wait until MongoDB confirms writes again: the fault ends then."""
    eventually(has_majority, within=MAJORITY_WITHIN)


def has_majority() -> bool:
    """Return True if a majority of the members confirms that the primary leads."""
    confirmed = database.database().get_collection("faults", read_concern=ReadConcern("linearizable"))
    try:
        with database.within(ANSWER_TIMEOUT):
            confirmed.find_one({"_id": 0})
    except PyMongoError:
        return False
    return True


def _secondaries(world: World) -> list[Member]:
    primary = eventually(world.mongo.primary)
    return [member for member in world.mongo.members if member is not primary]


def _killed(world: World, members: list[Member]) -> Iterator[None]:
    for member in members:
        member.kill()
    try:
        yield
    finally:
        for member in members:
            member.start()
        _wait_for_majority()


# Deliveries


@kind(DELIVERIES, (2, 6), weight=2)
def duplicate_deliveries(world: World, _: Fault) -> Iterator[None]:
    """Each message that a worker holds is delivered once more, and its copy is not."""
    seen = set[str]()

    def duplicate(client: redis.Redis) -> None:
        for text in client.hvals(UNACKED):
            message, _, queue = json.loads(text)
            id = message["headers"]["id"]
            if queue in QUEUES and id not in seen:
                seen.add(id)
                client.lpush(queue, json.dumps(message))

    with _repeatedly(world, duplicate):
        yield


@kind(DELIVERIES, (2, 6), weight=2)
def late_deliveries(world: World, _: Fault) -> Iterator[None]:
    """Messages that no worker has taken yet are delivered later, in the reverse order."""
    held: dict[str, list[str]] = {queue: [] for queue in QUEUES}

    def hold(client: redis.Redis) -> None:
        for queue, messages in held.items():
            while message := client.rpop(queue):
                messages.append(str(message))

    with _repeatedly(world, hold):
        yield
    for queue, messages in held.items():
        while messages:
            with suppress(redis.RedisError), world.connect() as client:
                client.lpush(queue, messages[-1])
                messages.pop()


@contextmanager
def _repeatedly(world: World, act: Callable[[redis.Redis], None]) -> Iterator[None]:
    def work(is_over: Event) -> None:
        while not is_over.wait(0.02):
            with suppress(redis.RedisError, OSError), world.connect() as client:
                act(client)

    with in_thread(work, name="deliveries"):
        yield


KINDS = (
    kill_redis,
    restart_redis_empty,
    flush_redis,
    fill_redis,
    slow_redis,
    cut_off_redis_one_way,
    cut_off_process_from_redis,
    close_connections_to_redis,
    freeze_redis,
    fail_over_redis,
    fill_disk_of_redis,
    wrong_clock_of_redis,
    kill_primary,
    kill_secondary,
    kill_majority,
    step_down_primary,
    freeze_primary,
    cut_off_process_from_mongodb,
    cut_off_primary_from_secondaries,
    fill_disk_of_mongodb,
    wrong_clock_of_mongodb,
    duplicate_deliveries,
    late_deliveries,
)
