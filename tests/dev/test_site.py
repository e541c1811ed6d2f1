"""The documentation site: what it is built from. `make docs` builds it, with strict links."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.site.llms import write_llms
from dev.site.markdown import blocks, relative_links
from dev.site.navigation import as_toml, navigation
from dev.site.reference import pages
from dev.site.staging import on_site, site_path, stage

ROOT = Path(__file__).parents[2]


def repository(directory: Path, **files: str) -> Path:
    (directory / "docs").mkdir()
    for name, text in files.items():
        (directory / name.replace("__", "/").replace("_", ".")).write_text(text)
    return directory


def test_linked_files_outside_docs_are_pages_of_the_site(tmp_path: Path) -> None:
    root = repository(
        tmp_path, docs__README_md="[a](../Procfile) [b](../NEWS.md#x)\n", Procfile="web: w\n", NEWS_md="# X\n"
    )
    stage(root, tmp_path / "site", {})
    assert (tmp_path / "site/index.md").read_text() == "[a](source/Procfile.md) [b](project/NEWS.md#x)\n"
    assert "web: w" in (tmp_path / "site/source/Procfile.md").read_text()
    assert (tmp_path / "site/project/NEWS.md").exists()


def test_a_linked_directory_is_a_list_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / "web.service").write_text("[Unit]\n")
    stage(repository(tmp_path, docs__README_md="[units](../units)\n"), tmp_path / "site", {})
    assert (tmp_path / "site/index.md").read_text() == "[units](project/units/index.md)\n"
    listing = (tmp_path / "site/project/units/index.md").read_text()
    assert listing == "# units\n\n- [web.service](../../source/units/web.service.md)\n"
    assert "[Unit]" in (tmp_path / "site/source/units/web.service.md").read_text()


def test_a_link_without_a_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"docs/README\.md: no file for the link away\.md"):
        stage(repository(tmp_path, docs__README_md="[a](away.md)\n"), tmp_path / "site", {})


def test_content_of_list_items_is_indented_by_four_and_comments_are_left_out(tmp_path: Path) -> None:
    text = "<!-- not run: example -->\n1. A\n\n   B\n2. C\n\nD\n"
    stage(repository(tmp_path, docs__README_md=text), tmp_path / "site", {})
    assert (tmp_path / "site/index.md").read_text() == "1. A\n\n    B\n\n2. C\n\nD\n"


def test_links_in_fenced_blocks_are_ignored() -> None:
    assert relative_links("[a](b.md)\n```\n[c](d.md)\n```\n<img src='x'> <img src=\"e.png\"> [f](https://g)\n") == [
        "b.md",
        "e.png",
    ]


def test_a_block_has_the_marker_on_the_line_before_it() -> None:
    text = "<!-- not run: a reason -->\n```bash\nrm -r /\n```\n\n1. x\n\n   ```\n   $ ls\n   ```\n"
    first, second = blocks(text)
    assert (first.language, first.code, first.marker, first.line) == ("bash", "rm -r /\n", "not run: a reason", 2)
    assert (second.language, second.code, second.marker, second.is_session) == ("", "$ ls\n", "", True)


def test_navigation_has_the_sections_of_the_index() -> None:
    index = "# Docs\n\n## How-to\n\n- [use `x`](a.md), and [b](c/README.md)\n\n## Reference\n\n- [R](r.md)\n"
    entries = navigation(index, {"generated.md": "G"}, lambda link: link.replace("README", "index"))
    assert entries["How-to"] == {"Use x": "a.md", "B": "c/index.md"}
    assert entries["Reference"] == {"R": "r.md", "G": "generated.md"}
    assert as_toml({"A": {"B": "c.md"}}) == '[{ "A" = [{ "B" = "c.md" }] }]'


@pytest.mark.slow
def test_the_site_has_every_page_generated_references_and_indexes_for_language_models(tmp_path: Path) -> None:
    generated = pages()
    staged = stage(ROOT, tmp_path / "pages", {path: text for path, (_, text) in generated.items()})
    index = ROOT / "docs" / "README.md"
    entries = navigation(
        index.read_text(),
        {path: title for path, (title, _) in generated.items()},
        lambda link: on_site(ROOT, index, link),
    )
    for page in [page for page in (tmp_path / "pages").rglob("*.md") if "source" not in page.parts]:
        for link in relative_links(page.read_text()):
            assert link.startswith("#") or (page.parent / link.partition("#")[0]).exists(), (page, link)
    listed = [path for section in entries.values() if isinstance(section, dict) for path in section.values()]
    (tmp_path / "site").mkdir()
    for path in listed:
        (tmp_path / "site" / str(path)).parent.mkdir(parents=True, exist_ok=True)
    write_llms(tmp_path / "pages", tmp_path / "site", entries)
    llms = (tmp_path / "site/llms.txt").read_text()
    for page in staged:
        path = str(site_path(ROOT, page))
        if page.is_relative_to(ROOT / "docs") and page.suffix == ".md" and page != index:
            assert path in listed
            assert f"]({path})" in llms


def test_generated_pages_have_every_command_operation_and_public_name() -> None:
    generated = {path.rpartition("/")[2]: text for path, (_, text) in pages().items()}
    assert "## queue-manager adopt jobs\n" in generated["commands.md"]
    assert "## queue-manager adopt\n" in generated["commands.md"]
    assert "## POST /api/queue/message\n" in generated["http-operations.md"]
    assert "Role: operator." in generated["http-operations.md"]
    assert "### jobs.run\n" in generated["python.md"]
    assert "## DueDocuments\n" in generated["python.md"]
