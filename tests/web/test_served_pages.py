"""What `queue-manager web` serves: pages, scripts and styles, and the errors of unknown paths."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from queue_manager.web.routes.pages import STATIC
from tests.real_servers import Servers
from tests.web.web_process import PAGES, SNOOZE, Web, forked_web, web


def test_without_hooks_there_are_no_triggers(process: Web) -> None:
    answer = process.post(SNOOZE)
    assert (answer.status, answer.body["error"]) == (404, "not found")
    for path in ("/rooms", "/schedule"):
        assert '<p id="no-hooks"' in process.get(path).text  # what the button needs


@pytest.mark.parametrize("path", ["/api/nonsense", "/nonsense", "/static/nonsense.js", "/static/../rooms.html"])
def test_unknown_paths_are_404_in_the_common_form(path: str, process: Web) -> None:
    answer = process.get(path)
    assert answer.status == 404
    assert answer.body.keys() == {"error", "message"}
    assert "no such path; /docs lists the paths" in answer.body["message"]


@pytest.mark.parametrize("path", ["/nonsense", "/schedule/nonsense", "/<b>nonsense"])
def test_an_unknown_page_links_back(path: str, process: Web) -> None:
    answer = process.get(path.replace("<", "%3C").replace(">", "%3E"), Accept="text/html")
    assert answer.status == 404
    assert '<a class="button" href="/">' in answer.text
    assert "<b>" not in answer.text


def test_unknown_api_paths_never_return_a_page(process: Web) -> None:
    assert process.get("/api/nonsense", Accept="text/html").body["error"] == "not found"


def test_a_foreign_host_name_is_refused(process: Web) -> None:
    assert process.get("/", Host="evil.example").status == 421
    assert process.get("/", Host=f"localhost:{process.port}").status == 200


@pytest.mark.parametrize("path", PAGES)
def test_a_page_runs_no_inline_script_and_loads_nothing_from_elsewhere(path: str, process: Web) -> None:
    page = process.get(path)
    assert page.status == 200
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert page.headers["cache-control"] == "no-store"
    for attributes, content in re.findall(r"<script(.*?)>(.*?)</script>", page.text, re.DOTALL):
        assert re.fullmatch(r'( type="module")? src="/static/\w+\.js"', attributes)
        assert content == ""
    assert not re.search(r"\son\w+=|style=|<style|https?://", page.text)
    loaded = re.findall(r'(?:src|href)="(/static/.+?)"', page.text)
    assert {process.get(file).status for file in loaded} == {200}


def test_scripts_are_served_in_a_locale_without_utf_8(clean: Servers, tmp_path: Path) -> None:
    with web(tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") as process:
        script, page = process.get("/static/list.js"), process.get("/rooms")
    assert (script.status, page.status) == (200, 200)
    assert "…" in script.text


def test_a_system_that_is_off_names_the_setting_that_turns_it_on(process: Web) -> None:
    assert "QM_MESSAGE_QUEUE=true" in process.get("/messages").text
    assert "QM_JOBS=true" in process.get("/jobs").text


@pytest.mark.parametrize(("period_ms", "silence_ms"), [("5000", "60000"), ("3600000", "10800000")])
def test_the_page_of_jobs_knows_when_a_silent_beat_is_missing(
    clean: Servers, tmp_path: Path, period_ms: str, silence_ms: str
) -> None:
    with forked_web(tmp_path, QM_JOBS="true", JOBS_TIMER_MS=period_ms) as process:
        assert f'data-max-silence-ms="{silence_ms}"' in process.get("/jobs").text


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_at_most_30_kb_of_script_and_style(path: str, process: Web) -> None:
    wanted = re.findall(r'(?:src|href)="(/static/.+?\.(?:js|css))"', process.get(path).text)
    loaded: dict[str, int] = {}
    while wanted:
        file = wanted.pop()
        if file not in loaded:
            content = process.get(file).text
            loaded[file] = compressed_size(process, file)
            wanted += [f"/static/{name}" for name in re.findall(r'from "\./(\w+\.js)"', content)]
    assert 2_000 < sum(loaded.values()) <= 30_000, loaded


def test_all_script_and_style_together_travel_in_60_kb(process: Web) -> None:
    names = [file.name for file in STATIC.iterdir() if file.suffix in (".js", ".css")]
    assert 10_000 < sum(compressed_size(process, f"/static/{name}") for name in names) <= 60_000


def test_scripts_and_styles_are_sent_without_comments_and_keep_their_line_numbers(process: Web) -> None:
    for file in STATIC.glob("*.[jc]s*"):
        sent = process.get(f"/static/{file.name}").text
        assert not re.search(r"/\*|\*/|(^| )//", sent, re.MULTILINE), file.name
        assert sent.count("\n") == file.read_text().count("\n")


def compressed_size(process: Web, path: str) -> int:
    url = f"http://127.0.0.1:{process.port}{path}"
    with urlopen(Request(url, headers={"accept-encoding": "gzip"}), timeout=10) as answer:
        return len(answer.read())
