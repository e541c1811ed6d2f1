"""A recording of a screen: an SVG picture that plays again and again."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Event

from rich.console import Console, RenderableType

from queue_manager.core.background import in_thread

WIDTH, HEIGHT = 100, 30
MOMENTS = (*range(11), *range(14, 40, 4))  # seconds; most happens at the start
LAST_FRAME_SECONDS = 6
# Each frame has its classes and ids to itself. Without motion, the last one is shown.
_FRAME = """
<svg class="frame" style="animation-name: {unique_id}" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px monospace }}
.{unique_id}-title {{ font: bold 18px sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
_PICTURE = """<svg {view_box} xmlns="http://www.w3.org/2000/svg">
<style>
.frame {{ visibility: hidden; animation: {total}s step-end infinite }}
{shown}
@media (prefers-reduced-motion: reduce) {{
.frame {{ animation: none }}
.frame:last-of-type {{ visibility: visible }}
}}
</style>
{frames}</svg>
"""


@dataclass(frozen=True)
class Frame:
    """What the screen shows from a moment on, in seconds after the beginning."""

    at: float
    screen: RenderableType


@contextmanager
def recorded(screen: Callable[[], RenderableType], path: Path, *, title: str) -> Iterator[None]:
    """Record what `screen` returns while the block runs, and save it when the block has ended."""
    frames: list[Frame] = []

    def watch(is_over: Event) -> None:
        began = time.monotonic()
        for at in MOMENTS:
            if is_over.wait(max(0.0, began + at - time.monotonic())):
                return
            frames.append(Frame(at, screen()))

    with in_thread(watch, name="recording"):
        yield
    path.write_text(animated(frames, title=title))


def animated(frames: Sequence[Frame], *, title: str) -> str:
    """Return an SVG picture that shows each frame at its moment."""
    total = frames[-1].at + LAST_FRAME_SECONDS
    drawn = [_drawn(frame.screen, title=title, unique_id=f"frame{number}") for number, frame in enumerate(frames)]
    moments = [frame.at / total for frame in frames]
    shown = [_keyframes(number, *span) for number, span in enumerate(pairwise([*moments, 1.0]))]
    view_box = re.findall('viewBox="[^"]+"', drawn[0])[0]
    return _PICTURE.format(view_box=view_box, total=total, shown="\n".join(shown), frames="".join(drawn))


def _keyframes(number: int, begins: float, ends: float) -> str:
    before = "0% { visibility: hidden } " if begins else ""
    spans = f"{begins:.2%} {{ visibility: visible }} {ends:.2%} {{ visibility: hidden }}"
    return f"@keyframes frame{number} {{ {before}{spans} }}"


def _drawn(screen: RenderableType, *, title: str, unique_id: str) -> str:
    console = Console(record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, highlight=False)
    console.print(screen)
    for _ in range(HEIGHT - len(console.render_lines(screen))):  # all frames have one size
        console.print()
    return console.export_svg(title=title, code_format=_FRAME, unique_id=unique_id)
