"""The recording of a screen is one picture in which each frame is shown at its time."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Event
from xml.etree import ElementTree

from rich.text import Text

from dev.recording import HEIGHT, LAST_FRAME_SECONDS, Frame, animated, recorded


def test_each_frame_is_shown_from_its_moment_until_the_next() -> None:
    picture = animated([Frame(0, Text("starting")), Frame(4, Text("running"))], title="make up")
    assert LAST_FRAME_SECONDS == 6
    assert ".frame { visibility: hidden; animation: 10s step-end infinite }" in picture
    assert "@keyframes frame0 { 0.00% { visibility: visible } 40.00% { visibility: hidden } }" in picture
    assert "@keyframes frame1 { 0% { visibility: hidden } 40.00% { visibility: visible } 100.00%" in picture
    first, second = (frame for frame in ElementTree.fromstring(picture) if frame.get("class") == "frame")
    assert "starting" in "".join(first.itertext())
    assert "running" in "".join(second.itertext())


def test_frames_have_one_size() -> None:
    frames = [Frame(0, Text("a")), Frame(1, Text("a\n" * (HEIGHT - 1)))]
    assert len(set(re.findall(r'viewBox="(.*?)"', animated(frames, title="make up")))) == 1


def test_the_screen_is_recorded_while_the_block_runs(tmp_path: Path) -> None:
    shown = Event()

    def screen() -> Text:
        shown.set()
        return Text("screen 0")

    with recorded(screen, tmp_path / "up.svg", title="make up"):
        assert shown.wait(30)
    assert "screen&#160;0" in (tmp_path / "up.svg").read_text()
