"""The image: what is in it, and its processes as an ordinary user with a read-only root."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dev import procfile
from dev.ports import free_port
from dev.site.markdown import blocks
from models.database import server_now
from queue_manager.core.clock import seconds
from tests.deployment.image import Image, add_package, build_image
from tests.deployment.installation import ROOT, Installation, run, status
from tests.deployment.probes import of_compose
from tests.documented import DOCS, block
from tests.e2e.watching import is_open, woken
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.credentials import KEYS

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

NAMES = ("worker", "beat")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], Image]]:
    """The buildah command that has the image, and the image."""
    if os.getuid() != 0:
        pytest.fail("an image is built and mounted as root only: run `make test-deploy` as root")
    buildah, image = build_image(tmp_path_factory.mktemp("image"))
    yield buildah, image
    run(*buildah, "rm", "--all")
    run(*buildah, "rmi", "--all")


@pytest.fixture(scope="module")
def image(built: tuple[list[str], Image]) -> Image:
    return built[1]


def test_the_image_runs_the_web_process_as_an_ordinary_user(image: Image) -> None:
    assert image.config["User"] == "10001:10001"
    assert image.config["Cmd"] == ["queue-manager", "web", "--host", "0.0.0.0"]
    assert [*image.config["ExposedPorts"]] == ["6002/tcp"]


def test_the_user_of_the_image_can_change_none_of_its_files(image: Image) -> None:
    installed = [path for path in (image.root / "opt").rglob("*") if not path.is_symlink()]
    assert len(installed) > 1000
    assert [path for path in installed if path.stat().st_uid != 0 or path.stat().st_mode & stat.S_IWOTH] == []


def test_the_image_has_no_sources_and_no_package_lists(image: Image) -> None:
    assert not (image.root / "src").exists()
    assert [*(image.root / "app").iterdir()] == []
    assert not [*(image.root / "var" / "lib" / "apt" / "lists").iterdir()]


def test_the_processes_wake_rooms_with_a_read_only_root(image: Image, clean: Servers, tmp_path: Path) -> None:
    port = free_port()
    env = {
        "MONGO_DB_URL": clean.mongo.url,
        "REDIS_URL": clean.valkey.url,
        "QM_CONVERSATIONS": "true",
        "QM_SNOOZE_SCAN_SECONDS": "1",
        "QM_API_KEYS": KEYS,
        "QM_WEB_PORT": str(port),
    }
    host = Installation(tmp_path / "image", ROOT)
    run("sh", "-c", image.command("queue-manager", "migrate", **env))
    commands = {one.name: one.command.split() for one in procfile.read(ROOT / "Procfile") if one.name in NAMES}
    commands["worker"].remove("--exclude-queues")
    commands["worker"].remove("scans,jobs")
    commands["web"] = image.config["Cmd"]
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(host.process(name, tmp_path, command=image.command(*command, **env)))
            for name, command in commands.items()
        }
        rooms = [make_room(server_now() - seconds(1)) for _ in range(3)]
        eventually(lambda: all(map(is_open, rooms)))
        assert [len(moments) for moments in woken(rooms)] == [1, 1, 1]
        eventually(lambda: status(port, "/readyz") == 200)
        for service in ("worker", "web"):
            check = of_compose(service, {":6002": f":{port}"})
            run("sh", "-c", image.command(*check.command, **env, **check.env))
        for process in processes.values():
            assert Path(f"/proc/{process.pid}/status").read_text().split("Uid:\t")[1].startswith("10001\t")
            os.kill(process.pid, signal.SIGTERM)
        assert {name: process.wait(30) for name, process in processes.items()} == dict.fromkeys(processes, 0)


def test_a_package_is_added_as_documented(built: tuple[list[str], Image], clean: Servers, tmp_path: Path) -> None:
    declaration = next(one.code for one in blocks((DOCS / "adding-a-system.md").read_text()))
    (tmp_path / "billing" / "billing").mkdir(parents=True)
    (tmp_path / "billing" / "billing" / "trial_end.py").write_text(declaration)
    (tmp_path / "billing" / "pyproject.toml").write_text('[project]\nname = "billing"\nversion = "1"\n')
    image = add_package(built[0], tmp_path, block(0, heading="Containers", page=DOCS / "how-to" / "deploy.md"))
    env = {"MONGO_DB_URL": clean.mongo.url, "REDIS_URL": clean.valkey.url, "QM_SYSTEMS": "billing.trial_end"}
    assert image.config["User"] == "10001:10001"
    assert "trial-end" in run("sh", "-c", image.command("queue-manager", "systems", "list", **env))
