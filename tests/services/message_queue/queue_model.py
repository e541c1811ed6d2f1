"""A model of the message queue in dicts and lists, with which the real one is compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

HISTORY = 100


@dataclass(kw_only=True)
class Modelled:
    """One message."""

    id: str
    type: str
    payload: str
    priority: int
    ack_timeout: float | None
    max_attempts: int | None
    attempts: int = 0
    last_error: str | None = None
    token: str | None = None
    deadline_ms: float | None = None
    has_failed: bool = False
    lives: int = 0


@dataclass
class QueueModel:
    """Where every message is. Lists are in the order of their streams, the oldest first."""

    levels: int
    max_attempts: int
    batch: int
    messages: dict[str, Modelled] = field(default_factory=dict)
    main: list[list[str]] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    kept: dict[str, list[str]] = field(default_factory=lambda: {"dead": [], "acknowledged": [], "archived": []})
    paused: set[str] = field(default_factory=set)
    total_acknowledged: int = 0
    events: list[tuple[str, list[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.main = [[] for _ in range(self.levels)]

    def place_of(self, id: str) -> str | None:
        if id not in self.messages:
            return None
        if id in self.held:
            return "processing"
        return next((place for place, ids in self.kept.items() if id in ids), "main")

    def waiting_of(self, type: str) -> list[str]:
        """Return the ids of a type in the order in which they are delivered."""
        return [id for ids in reversed(self.main) for id in ids if self.messages[id].type == type]

    # Operations

    def enqueue(self, new: list[Modelled]) -> list[bool]:
        answers = []
        for message in new:
            is_new = message.id not in self.messages
            if is_new:
                self.messages[message.id] = message
                self.main[message.priority].append(message.id)
            answers.append(is_new)
        if any(answers):
            self._tell("enqueue", [message.id for message, is_new in zip(new, answers, strict=True) if is_new])
        return answers

    def next_one(self, type: str | None) -> Modelled | None:
        for ids in reversed(self.main):
            for id in ids:
                message = self.messages[id]
                if message.type not in self.paused and type in (None, message.type):
                    return message
        return None

    def deliver(self, message: Modelled, token: str, deadline_ms: float) -> None:
        self.main[message.priority].remove(message.id)
        self.held[message.id] = token
        message.attempts += 1
        message.token, message.deadline_ms = token, deadline_ms
        self._tell("dequeue", [message.id])

    def is_holder(self, id: str, token: str) -> bool:
        return self.held.get(id) == token

    def ack(self, id: str) -> None:
        self._release(id)
        self._remember(id)
        self._tell("acknowledge", [id])

    def nack(self, id: str, reason: str) -> bool:
        message = self._release(id)
        self._tell("nack", [id])
        if message.attempts >= (message.max_attempts or self.max_attempts):
            self._bury(message, reason)
            self._tell("move_to_dlq", [id])
            return False
        message.last_error = reason
        self.main[message.priority].append(id)
        return True

    def sweep(self, now_ms: float) -> tuple[list[str], list[str]]:
        deadlines = {id: self.messages[id].deadline_ms or 0 for id in self.held}
        overdue = sorted((id for id in deadlines if deadlines[id] <= now_ms), key=lambda id: (deadlines[id], id))
        all_requeued, all_dead = [], []
        for some in in_batches(overdue, self.batch):
            requeued, dead = [], []
            for id in some:
                message = self._release(id)
                if message.attempts >= (message.max_attempts or self.max_attempts):
                    self._bury(message, "Max attempts exceeded (Stream)")
                    dead.append(id)
                else:
                    message.last_error = "Processing timeout"
                    self.main[message.priority].append(id)
                    requeued.append(id)
            self._tell("requeue", requeued + dead)
            if dead:
                self._tell("move_to_dlq", dead)
            all_requeued += requeued
            all_dead += dead
        return all_requeued, all_dead

    def move(self, ids: list[str], *, to: str, source: str | None, reason: str) -> dict[str, str]:
        answers = {}
        for id in ids:
            place = self.place_of(id)
            if place is None or place == to or source not in (None, place):
                answers[id] = "NOT_FOUND"
                continue
            message = self._release(id) if place == "processing" else self._take_out(id, place)
            if to == "main":
                if place != "processing":
                    message.lives = min(message.lives + message.has_failed, 10)
                    message.attempts, message.has_failed = 0, False
                self.main[message.priority].append(id)
            elif to == "dead":
                self._bury(message, reason)
            elif to == "acknowledged":
                self._remember(id)
            else:
                self.kept["archived"].append(id)
            answers[id] = "MOVED"
        moved = [id for id, answer in answers.items() if answer == "MOVED"]
        if moved:
            self._tell("move", moved)
        return answers

    def delete(self, ids: list[str], *, source: str | None) -> dict[str, str]:
        answers = {}
        for id in ids:
            place = self.place_of(id)
            if place is None or source not in (None, place):
                answers[id] = "NOT_FOUND"
                continue
            if place == "processing":
                self._release(id)
            else:
                self._take_out(id, place)
            del self.messages[id]
            answers[id] = "DELETED"
        if deleted := [id for id, answer in answers.items() if answer == "DELETED"]:
            self._tell("delete", deleted)
        return answers

    def update(self, id: str, changes: dict[str, Any]) -> None:
        message, place = self.messages[id], self.place_of(id)
        old_priority = message.priority
        for name, value in changes.items():
            setattr(message, name, value)
        if place == "main":
            self.main[old_priority].remove(id)
            self.main[message.priority].append(id)
        elif "payload" in changes:
            ids = self.kept[str(place)]
            ids.remove(id)
            ids.append(id)
        self._tell("update", [id])

    def clear(self, place: str | None) -> int:
        gone = [id for id in self.messages if place in (None, self.place_of(id))]
        for id in gone:
            was_in = str(self.place_of(id))
            if was_in == "processing":
                del self.held[id]
            else:
                self._take_out(id, was_in)
            del self.messages[id]
        self._tell("clear", [])
        return len(gone)

    def pause(self, type: str) -> None:
        self.paused.add(type)
        self._tell("pause", [])

    def resume(self, type: str) -> None:
        if type in self.paused:
            self.paused.remove(type)
            self._tell("resume", [])

    # Steps

    def _release(self, id: str) -> Modelled:
        del self.held[id]
        message = self.messages[id]
        message.token = message.deadline_ms = None
        return message

    def _take_out(self, id: str, place: str) -> Modelled:
        message = self.messages[id]
        (self.main[message.priority] if place == "main" else self.kept[place]).remove(id)
        return message

    def _bury(self, message: Modelled, reason: str) -> None:
        message.last_error, message.has_failed = reason, True
        self.kept["dead"].append(message.id)

    def _remember(self, id: str) -> None:
        self.total_acknowledged += 1
        history = self.kept["acknowledged"]
        history.append(id)
        for old in history[:-HISTORY]:
            del self.messages[old]
        del history[:-HISTORY]

    def _tell(self, kind: str, ids: list[str]) -> None:
        self.events.append((kind, ids))


def in_batches(ids: list[str], size: int) -> list[list[str]]:
    return [ids[begin : begin + size] for begin in range(0, len(ids), size)]
