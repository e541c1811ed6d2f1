"""The TypeScript client: its types are those of the API, it compiles, and its requests to a real web process work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dev.api_description import EVERYTHING, api_description
from dev.site.markdown import blocks
from queue_manager.client import Client
from tests.any_jobs import INVOICE
from tests.client.clients import JOBS_AND_SCANS, url_of
from tests.client.test_distribution import ROOT, project
from tests.deployment.programs import replaced
from tests.web.credentials import OPERATOR
from tests.web.queue_client import Queue

PACKAGE = ROOT / "clients" / "typescript"
PAGES = [PACKAGE / "README.md", ROOT / "docs" / "how-to" / "http-clients.md"]


def run(*command: str, cwd: Path = PACKAGE) -> str:
    # `node` itself may be a wheel, in the directory of this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def example_of(page: Path) -> str:
    text = "\n".join(block.code for block in blocks(page.read_text()) if block.language == "ts")
    assert "createClient" in text
    return text


def test_typescript_client_has_the_version_of_queue_manager() -> None:
    package, lock = (json.loads((PACKAGE / name).read_text()) for name in ("package.json", "package-lock.json"))
    assert {package["version"], lock["version"], lock["packages"][""]["version"]} == {project(ROOT)["version"]}


def test_types_are_generated_from_the_description_of_a_web_process_with_everything(queue: Queue) -> None:
    assert {name.upper() for name in EVERYTHING} <= {"QM_MESSAGE_QUEUE", *JOBS_AND_SCANS}
    assert queue.web.get("/openapi.json", X_API_KEY=OPERATOR).body == api_description()


@pytest.mark.node
def test_a_package_without_types_is_not_built(tmp_path: Path) -> None:
    shutil.copy(PACKAGE / "package.json", tmp_path)
    with pytest.raises(AssertionError, match=r"schema\.ts is missing: run `make clients`"):
        run("npm", "pack", "--dry-run", cwd=tmp_path)


@pytest.mark.node
def test_typescript_package_contains_javascript_and_types(tmp_path: Path) -> None:
    run("npm", "run", "--silent", "check")
    run("npm", "run", "--silent", "build", "--", "--outDir", str(tmp_path))
    assert {"index.js", "index.d.ts", "schema.d.ts"} <= {file.name for file in tmp_path.iterdir()}
    assert 'from "./schema.js"' in (tmp_path / "index.d.ts").read_text()


@pytest.mark.node
def test_typescript_package_contains_the_license() -> None:
    (package,) = json.loads(run("npm", "pack", "--dry-run", "--json", "--ignore-scripts"))
    assert "LICENSE" in {file["path"] for file in package["files"]}  # npm leaves links out
    assert (PACKAGE / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.node
def test_the_examples_of_its_pages_have_correct_types(tmp_path: Path) -> None:
    for page in PAGES:
        (tmp_path / f"{page.stem}.ts").write_text(example_of(page))
    options = {"paths": {"queue-manager-client": [str(PACKAGE / "src" / "index.ts")]}, "types": []}
    options["typeRoots"] = [str(PACKAGE / "node_modules" / "@types")]
    config = {"extends": str(PACKAGE / "tsconfig.json"), "compilerOptions": options, "include": ["*.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    run("npx", "tsc", "--project", str(tmp_path))


@pytest.mark.node
def test_the_examples_of_its_pages_are_answered(queue: Queue, tmp_path: Path) -> None:
    changes = {
        "queue-manager-client": str(PACKAGE / "src" / "index.ts"),
        "http://127.0.0.1:6002": url_of(queue.web.port),
        "YOUR_API_KEY": OPERATOR,
    }
    printed = {}
    for page in PAGES:
        program = tmp_path / f"{page.stem}.mts"
        program.write_text(replaced(example_of(page), changes).replace("send_invoice", INVOICE))
        printed[page.stem] = run("node", str(program)).splitlines()
    with Client(url_of(queue.web.port), api_key=OPERATOR) as client:
        payloads = [[one.payload for one in client.messages.list(state)] for state in ("acknowledged", "main")]
        (job,) = client.jobs.list()
    assert payloads == [[{"to": "ada@example.org"}]] * 2
    assert printed == {"README": [], "http-clients": [job.id, "{ to: 'ada@example.org' }"]}


@pytest.mark.node
def test_requests_of_the_typescript_client_are_answered(queue: Queue) -> None:
    results = json.loads(run("node", "test/requests.ts", url_of(queue.web.port), OPERATOR))
    assert results.pop("invalid") == {
        "error": "invalid",
        "message": "id: must be 1 to 128 letters, digits or any of _ . : @ -, but not . or ..",
        "field": "id",
    }
    assert results == {
        "added": "mail-1",
        "payload": {"to": "ada@example.org"},
        "touched": 60,
        "acknowledged": 200,
        "empty": "Message not found",
        "job": [42],
        "jobs": ["test.send_invoice"],
        "system": "Rooms",
        "stranger": 401,
    }
    with Client(url_of(queue.web.port), api_key=OPERATOR) as client:
        assert client.messages.get("mail-1").state == "acknowledged"


@pytest.mark.node
def test_a_response_of_a_proxy_is_an_error_and_no_key_or_password_gets_to_others_or_into_errors() -> None:
    results = json.loads(run("node", "test/proxies.ts"))
    assert set(results["redirected"].values()) == {"unexpected redirect"}
    assert results["followed"] == 0
    assert results["refused"] == [
        "TypeError: apiKey: must not contain a line break",
        "TypeError: baseUrl: must not contain a user or a password",
    ]
    assert [(error["status"], error["error"], error["message"], error.get("field")) for error in results["errors"]] == [
        (502, "bad gateway", "<html>Bad Gateway</html>", None),
        (503, "service unavailable", "The response has the status 503 and no body", None),
        (429, "too many requests", '{"detail": "slow down"}', None),
        (422, "invalid", "type: is missing", "type"),
    ]
    assert {error["retryAfter"] for error in results["errors"]} == {"7"}
