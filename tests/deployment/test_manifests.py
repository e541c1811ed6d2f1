"""The Kubernetes manifests and the Compose file: valid, hardened, and with the commands of the Procfile."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dotenv import dotenv_values
from redis import Redis

from dev import procfile
from dev.binaries import VALKEY
from dev.ports import free_port, is_answering
from queue_manager.core.settings import Settings
from tests.deployment.installation import ROOT, run
from tests.deployment.programs import program
from tests.eventually import eventually

BASE, KEDA = ROOT / "deploy" / "kubernetes" / "base", ROOT / "deploy" / "kubernetes" / "keda"
INGRESS = ROOT / "deploy" / "kubernetes" / "ingress-nginx.yaml"
CONFIG = {name: value or "" for name, value in dotenv_values(BASE / "config.env").items()}
COMPOSE = ROOT / "deploy" / "compose.yaml"
KUBERNETES_VERSION = "1.31"
CHECKOV_VERSION = "3.3.30"
WORKERS = ("worker", "jobs", "scans")
COMMANDS = {one.name: shlex.split(one.command) for one in procfile.read(ROOT / "Procfile")}
MIGRATION = {"migrate": COMMANDS["release"]}
WEB = {"web": [*COMMANDS["web"], "--host", "0.0.0.0"]}
GRACE = Settings.model_fields["qm_shutdown_seconds"].default + 10
WEB_GRACE = 20  # seconds; it completes a request in up to 15 s

Manifest = dict[str, Any]


def manifests(directory: Path) -> Iterator[Manifest]:
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    for resource in kustomization["resources"]:
        if (directory / resource).is_file():
            yield from yaml.safe_load_all((directory / resource).read_text())


def of_kind(*kinds: str) -> dict[str, Manifest]:
    found = [one for one in manifests(BASE) if one["kind"] in kinds]
    return {one["metadata"]["name"].removeprefix("queue-manager-"): one for one in found}


def test_the_manifests_are_valid() -> None:
    kinds = set()
    for manifest in manifests(BASE):
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)
        kinds.add(manifest["kind"])
    assert kinds == {"Job", "Deployment", "PodDisruptionBudget", "Service", "NetworkPolicy"}


def test_the_ingress_is_valid_and_leads_to_the_web_process() -> None:
    ingress = yaml.safe_load(INGRESS.read_text())
    kubernetes_validate.validate(ingress, KUBERNETES_VERSION, strict=True)
    ((path,),) = [rule["http"]["paths"] for rule in ingress["spec"]["rules"]]
    service = of_kind("Service")["web"]
    assert path["backend"]["service"] == {
        "name": service["metadata"]["name"],
        "port": {"name": service["spec"]["ports"][0]["name"]},
    }


def test_every_manifest_is_applied() -> None:
    for directory in (BASE, KEDA):
        resources = yaml.safe_load((directory / "kustomization.yaml").read_text())["resources"]
        files = {path.name for path in directory.glob("*.yaml")} - {"kustomization.yaml"}
        assert files == {resource for resource in resources if resource != "../base"}


def test_pods_run_the_commands_of_the_procfile() -> None:
    commands = {
        name: one["spec"]["template"]["spec"]["containers"][0]["command"]
        for name, one in of_kind("Deployment", "Job").items()
    }
    others = {name: COMMANDS[name] for name in (*WORKERS, "beat")}
    assert commands == {**MIGRATION, **WEB, **others}


def test_documented_commands_migrate_first_and_start_what_sends_ticks_last() -> None:
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    commands = [line.removeprefix("$ ").split() for line in page.splitlines() if line.startswith("$ kubectl")]
    apply = ["kubectl", "apply", "-k", "deploy/kubernetes/base"]
    ended = "--for=jsonpath='{.status.conditions[0].status}'=True"
    assert commands[1:] == [
        ["kubectl", "delete", "job", "queue-manager-migrate", "--ignore-not-found"],
        [*apply, "-l", "app.kubernetes.io/component=migration"],
        ["kubectl", "wait", ended, "--timeout=1h", "job/queue-manager-migrate"],
        ["kubectl", "wait", "--for=condition=complete", "job/queue-manager-migrate"],
        [*apply, "-l", "app.kubernetes.io/component=worker"],
        ["kubectl", "rollout", "status", "deployment", "-l", "app.kubernetes.io/component=worker"],
        [*apply, "-l", "app.kubernetes.io/component=scans"],
        ["kubectl", "rollout", "status", "deployment", "-l", "app.kubernetes.io/component=scans"],
        apply,
    ]
    components = [
        (one["metadata"]["labels"]["app.kubernetes.io/component"], one["kind"], one["metadata"]["name"])
        for one in manifests(BASE)
        if "app.kubernetes.io/component" in one["metadata"].get("labels", {})
    ]
    assert sorted(components) == [
        ("migration", "Job", "queue-manager-migrate"),
        ("scans", "Deployment", "queue-manager-scans"),
        ("worker", "Deployment", "queue-manager-jobs"),
        ("worker", "Deployment", "queue-manager-worker"),
    ]


def test_a_changed_setting_replaces_the_pods_and_is_applied_with_the_migration() -> None:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    assert "generatorOptions" not in kustomization  # which could leave out the hash
    assert kustomization["configMapGenerator"] == [
        {
            "name": "queue-manager",
            "envs": ["config.env"],
            "options": {"labels": {"app.kubernetes.io/component": "migration"}},
        }
    ]
    for name, one in of_kind("Deployment", "Job").items():
        (container,) = one["spec"]["template"]["spec"]["containers"]
        assert container["envFrom"][0] == {"configMapRef": {"name": "queue-manager"}}, name


def test_the_migration_may_have_a_mongodb_user_of_its_own() -> None:
    (container,) = of_kind("Job")["migrate"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"][-1] == {"secretRef": {"name": "queue-manager-migrate", "optional": True}}


def test_the_migration_is_not_repeated_and_keeps_its_log_if_documents_violate_an_index() -> None:
    job = of_kind("Job")["migrate"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    on_exit_codes = {"containerName": container["name"], "operator": "In", "values": [2]}
    assert job["podFailurePolicy"] == {"rules": [{"action": "FailJob", "onExitCodes": on_exit_codes}]}
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # Kubernetes requires it, and keeps the pod


def test_pods_have_no_privileges_and_a_read_only_root() -> None:
    for name, one in of_kind("Deployment", "Job").items():
        pod = one["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }, name
        assert pod["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name


def test_connections_are_accepted_by_the_web_process_alone() -> None:
    refusing, web = (one["spec"] for one in manifests(BASE) if one["kind"] == "NetworkPolicy")
    (others,) = refusing["podSelector"]["matchExpressions"]
    labels = {
        one["spec"]["template"]["metadata"]["labels"][others["key"]] for one in of_kind("Deployment", "Job").values()
    }
    assert {*others["values"]} == labels - {"queue-manager-web"}
    assert (refusing["policyTypes"], refusing.get("ingress")) == (["Ingress"], None)
    assert web["podSelector"]["matchLabels"] == {others["key"]: "queue-manager-web"}
    (container,) = of_kind("Deployment")["web"]["spec"]["template"]["spec"]["containers"]
    assert [port["port"] for rule in web["ingress"] for port in rule["ports"]] == [
        container["ports"][0]["containerPort"]
    ]


@pytest.mark.deploy
@pytest.mark.timeout(600)
def test_checkov_reports_nothing(tmp_path: Path) -> None:
    """It is installed here, because its dependencies are pinned to versions that are not ours."""
    run(sys.executable, "-m", "venv", tmp_path)
    run(tmp_path / "bin" / "python", "-m", "pip", "install", "--quiet", f"checkov=={CHECKOV_VERSION}")
    checkov: list[str | Path] = [tmp_path / "bin" / "checkov", "--config-file", ROOT / "deploy" / ".checkov.yaml"]
    report = run(*checkov, "--directory", ROOT / "deploy", "--compact", "--output", "json")
    summary = json.loads(report)["summary"]
    assert summary["failed"] == 0
    assert summary["passed"] > 400
    assert summary["parsing_errors"] == 0


def test_every_deployment_has_two_pods_that_are_never_all_evicted() -> None:
    deployments, budgets = of_kind("Deployment"), of_kind("PodDisruptionBudget")
    assert {name: one["spec"]["replicas"] for name, one in deployments.items()} == dict.fromkeys(deployments, 2)
    for name, one in deployments.items():
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert budgets[name]["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
        assert one["spec"]["selector"] == {"matchLabels": labels}


def test_pods_have_time_to_end_their_tasks() -> None:
    grace = {
        name: one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for name, one in of_kind("Deployment").items()
    }
    assert {name: grace[name] for name in WORKERS} == dict.fromkeys(WORKERS, float(CONFIG["QM_SHUTDOWN_SECONDS"]) + 10)


def test_a_web_pod_has_time_to_complete_a_request_after_its_pre_stop_hook() -> None:
    pod = of_kind("Deployment")["web"]["spec"]["template"]["spec"]
    _, pre_stop = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] == float(pre_stop) + WEB_GRACE


def test_settings_of_the_manifests_exist() -> None:
    names = {name.upper() for name in Settings.model_fields}
    assert CONFIG.keys() <= names


def test_the_autoscaler_alone_sets_the_number_of_workers() -> None:
    (patch,) = yaml.safe_load((KEDA / "kustomization.yaml").read_text())["patches"]
    assert json.loads(patch["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]  # kustomize reads JSON here
    deployments = [f"queue-manager-{name}" for name in of_kind("Deployment")]
    patched = {name for name in deployments if re.fullmatch(patch["target"]["name"], name)}
    assert patched == {one["spec"]["scaleTargetRef"]["name"] for one in manifests(KEDA)}


def test_autoscaling_uses_metrics_and_deployments_that_exist() -> None:
    metrics = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    scaled = list(manifests(KEDA))
    assert [one["kind"] for one in scaled] == ["ScaledObject", "ScaledObject"]
    for one in scaled:
        assert one["spec"]["scaleTargetRef"]["name"].removeprefix("queue-manager-") in of_kind("Deployment")
        for trigger in one["spec"]["triggers"]:
            used = set(re.findall(r"queue_manager_\w+", trigger["metadata"]["query"]))
            assert used
            assert all(f"`{name}`" in metrics for name in used)


@pytest.mark.deploy
def test_the_compose_file_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QM_API_KEYS", "[]")
    run(program("docker-compose", package="docker-compose"), "--file", COMPOSE, "config", "--quiet")


def test_compose_runs_two_of_each_process_with_the_commands_of_the_procfile() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    ours = {name: one for name, one in services.items() if one["image"] == "queue-manager"}
    default = {"web": WEB["web"]}  # the command of the image
    commands = {name: one.get("command", default.get(name)) for name, one in ours.items()}
    assert commands == {**MIGRATION, **WEB, **{name: COMMANDS[name] for name in (*WORKERS, "beat")}}
    assert {name: one["deploy"]["replicas"] for name, one in ours.items() if name != "migrate"} == dict.fromkeys(
        {*ours} - {"migrate"}, 2
    )
    for name, one in ours.items():
        assert (one["read_only"], one["cap_drop"]) == (True, ["ALL"]), name
        grace = {**dict.fromkeys(WORKERS, GRACE), "web": WEB_GRACE}.get(name)
        assert grace is None or one["stop_grace_period"] == f"{grace:g}s"
    assert len([one for one in services.values() if "--replSet" in one.get("command", ())]) == 3


@pytest.mark.deploy
def test_sentinels_of_compose_keep_the_primary_that_they_chose(tmp_path: Path) -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    ports = {name: free_port() for name in ("redis1", "redis2", "sentinel1", "sentinel2", "sentinel3")}

    def here(text: str) -> str:
        return re.sub(r"redis[12]", "localhost", text.replace("redis1 6379", f"localhost {ports['redis1']}"))

    def start(name: str) -> subprocess.Popen[bytes]:
        """Run the command of a service, with a directory instead of its volume, and ports instead of host names."""
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        environment = {key: here(value) for key, value in services[name].get("environment", {}).items()}
        shell, option, script = services[name]["command"]
        script = here(script.replace("$$", "$")).replace("/data/", f"{directory}/")
        script = script.replace("port 26379", f"port {ports[name]}")
        script = script.replace("docker-entrypoint.sh valkey-server", str(VALKEY.find()))
        if name.startswith("redis"):
            script = f"{script.strip()} --port {ports[name]}"
        process = subprocess.Popen(
            [shell, option, script], cwd=directory, env={**os.environ, **environment}, stdout=subprocess.DEVNULL
        )
        running.callback(process.wait)
        running.callback(process.kill)
        eventually(lambda: is_answering(ports[name]))
        return process

    def known(to: Redis) -> tuple[object, ...]:
        """Return the host and port of the primary, and the numbers of its replicas and of other Sentinels."""
        primary: Any = to.sentinel_master("queue-manager")
        return primary["ip"], primary["port"], primary["num-slaves"], primary["num-other-sentinels"]

    with ExitStack() as running:
        clients = {name: running.enter_context(Redis(port=port)) for name, port in ports.items()}
        sentinels = [clients[f"sentinel{number}"] for number in (1, 2, 3)]
        processes = {name: start(name) for name in ports}
        for sentinel in sentinels:
            eventually(lambda to=sentinel: known(to) == ("localhost", ports["redis1"], 1, 2))
        processes["redis1"].kill()
        for sentinel in sentinels:
            eventually(lambda to=sentinel: known(to)[:2] == ("localhost", ports["redis2"]))
        eventually(lambda: clients["redis2"].info("replication")["role"] == "master")
        clients["redis2"].set("key", "value")
        processes["redis1"].wait()
        processes["redis1"] = start("redis1")
        eventually(lambda: clients["redis1"].get("key") == b"value", within=90)
        for process in processes.values():
            process.kill()
            process.wait()
        for name in processes:  # they have kept what they knew
            start(name)
        for sentinel in sentinels:
            eventually(lambda to=sentinel: known(to) == ("localhost", ports["redis2"], 1, 2), within=60)
        eventually(lambda: clients["redis1"].info("replication")["role"] == "slave", within=60)
        assert clients["redis2"].info("replication")["role"] == "master"
        assert clients["redis2"].get("key") == b"value"
