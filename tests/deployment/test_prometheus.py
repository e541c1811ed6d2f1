"""Metrics, alert rules and dashboard, examined by Prometheus' own tools and by a Prometheus that scrapes a web process.

Needs Debian's package `prometheus`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from beat_schedule import SYSTEMS
from dev.children import spawn
from dev.ports import LOOPBACK, free_port
from models import site
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.telemetry import counters
from queue_manager.web.routes.metrics import STATISTICS
from tests.deployment.programs import replaced
from tests.documented import DOCS, block
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.credentials import KEYS, VIEWER
from tests.web.web_process import Web, web

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "queue-manager.json"
AUTOSCALING = ROOT / "deploy" / "kubernetes" / "keda" / "autoscaling.yaml"
FLAGS = ("QM_CONVERSATIONS", "QM_PROJECTS", "QM_SITES_FIX_STALE_THUMBNAILS", "QM_MESSAGE_QUEUE", "QM_JOBS")
RUN = {"found": 3, "claimed": 2, "enqueued": 2, "errors": 0, "duration_ms": 40}
METRIC = re.compile(r"\bqueue_manager_\w+")


def program(name: str) -> str:
    if (path := shutil.which(name)) is None:
        pytest.fail(f"{name} is not installed: apt-get install prometheus")
    return path


def promtool(*arguments: str, said: str | None = None) -> str:
    """Run promtool and return what it prints, with an empty line for no complaint."""
    result = subprocess.run([program("promtool"), *arguments], input=said, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.fixture
def process(clean: Servers, tmp_path: Path) -> Iterator[Web]:
    make_room(server_now() - seconds(60))
    with web(tmp_path, **dict.fromkeys(FLAGS, "true")) as process:
        yield process


def count_work() -> None:
    for system in SYSTEMS:
        counters.scan(system.scan_task, RUN)
        counters.add(str(system.counted_as), {"done": 2, "failed": 1, "retried": 1})


def test_metrics_keep_to_the_conventions(process: Web) -> None:
    text = process.get("/metrics").text
    assert promtool("check", "metrics", said=text) == ""
    families = list(text_string_to_metric_families(text))
    assert [family.name for family in families if not family.documentation.endswith(".")] == []
    assert {family.name for family in families if family.documentation.startswith("Statistic ")} == {
        f"queue_manager_{state}_{name}" for name in site.ALL for state in ("stuck", "finished")
    }
    assert {f"queue_manager_{name.removesuffix('_total')}" for name in STATISTICS} <= {one.name for one in families}


def test_the_configuration_and_the_rules_are_valid() -> None:
    promtool("check", "config", str(PROMETHEUS / "prometheus.yaml"))
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(PROMETHEUS / "alerts.yaml"))


def test_each_alert_fires_only_when_it_should() -> None:
    promtool("test", "rules", str(Path(__file__).with_name("alert_tests.yaml")))


class Prometheus:
    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str, **parameters: str) -> Any:
        url = f"http://{LOOPBACK}:{self._port}/api/v1/{path}?{urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found


def of_deploy(target: Web) -> str:
    """Return the configuration of `deploy/`, by which Prometheus scrapes a web process every second."""
    config = (PROMETHEUS / "prometheus.yaml").read_text()
    changes = {
        "15s": "1s",
        "alerts.yaml": str(PROMETHEUS / "alerts.yaml"),
        "127.0.0.1:6002": f"{LOOPBACK}:{target.port}",
    }
    for old, new in changes.items():
        assert old in config
        config = config.replace(old, new)
    return config


@contextmanager
def prometheus(directory: Path, config: str) -> Iterator[Prometheus]:
    """Run a Prometheus."""
    file, port = directory / "prometheus.yaml", free_port()
    file.write_text(config)
    options = {"config.file": file, "storage.tsdb.path": directory / "data", "web.listen-address": f"{LOOPBACK}:{port}"}
    command = [program("prometheus"), *(f"--{name}={value}" for name, value in options.items())]
    with (directory / "prometheus.log").open("wb") as log:
        child = spawn(command, cwd=directory, stdout=log, stderr=log)
    try:
        running = Prometheus(port)
        eventually(lambda: is_up(running))
        yield running
    finally:
        child.kill()


def is_up(running: Prometheus) -> bool:
    try:
        return [one["value"][1] for one in running.query("up")] == ["1"]
    except OSError:
        return False


def expressions() -> list[str]:
    """Return the queries of the dashboard, with its variables as Grafana sets them."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [one.replace("$__rate_interval", "30s").replace("$system", ".*") for one in found]


def queries_of_autoscaling() -> list[str]:
    scaled = yaml.safe_load_all(AUTOSCALING.read_text())
    return [trigger["metadata"]["query"] for one in scaled for trigger in one["spec"]["triggers"]]


def test_every_query_of_the_dashboard_the_alerts_and_the_autoscaling_is_answered(process: Web, tmp_path: Path) -> None:
    count_work()
    with prometheus(tmp_path, of_deploy(process)) as running:
        eventually(lambda: len(running.query("count_over_time(queue_manager_leader[30s]) > 2")) == 1)
        count_work()
        for expression in expressions():
            assert eventually(lambda one=expression: running.query(one)), expression
        for query in queries_of_autoscaling():
            assert [one["metric"] for one in running.query(query)] == [{}], "KEDA needs one number"
        (group,) = eventually(lambda: evaluated(running))
        alerts = {rule["name"]: rule["state"] for rule in group["rules"]}
        assert {rule["health"] for rule in group["rules"]} == {"ok"}
        assert (alerts["QueueManagerCritical"], alerts["QueueManagerDown"]) == ("pending", "inactive")


def test_a_web_process_with_keys_is_scraped_as_documented(clean: Servers, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(VIEWER)
    documented = block(0, heading="Prometheus", page=DOCS / "how-to" / "monitor.md")
    with web(tmp_path, QM_API_KEYS=KEYS) as process:
        address = {"queue-manager.example:6002": f"{LOOPBACK}:{process.port}"}
        config = replaced(documented, {"/etc/prometheus/queue-manager.key": str(key), **address})
        with prometheus(tmp_path, f"global: {{scrape_interval: 1s}}\n{config}") as running:
            assert eventually(lambda: running.query("queue_manager_build_info"))


def evaluated(running: Prometheus) -> list[dict[str, Any]] | None:
    """Return the groups of rules once all of them were evaluated."""
    groups: list[dict[str, Any]] = running.get("rules")["groups"]
    return groups if all(rule["health"] != "unknown" for group in groups for rule in group["rules"]) else None


def test_dashboard_and_alerts_use_only_metrics_that_exist(process: Web) -> None:
    count_work()
    families = text_string_to_metric_families(process.get("/metrics").text)
    exist = {sample.name for family in families for sample in family.samples}
    used = METRIC.findall((PROMETHEUS / "alerts.yaml").read_text() + " ".join(expressions()))
    assert {*used} - exist == set()
