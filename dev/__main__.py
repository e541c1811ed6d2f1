"""`python -m dev`: what `make up` runs."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `make up` handles it: no traceback of the imports

from dev.up import main  # noqa: E402

parser = argparse.ArgumentParser(
    prog="python -m dev",
    description="Run everything here: servers, the Procfile's processes, a live demo. Ctrl-C stops it all, in order. "
    "With MONGO_DB_URL and REDIS_URL set, your servers are used instead of embedded ones.",
)
parser.add_argument("--no-demo", action="store_true", help="start without demo data")
parser.add_argument("--logs", action="store_true", help="show all logs instead of a screen")
parser.add_argument(
    "--record", metavar="FILE", type=Path, help="stop after a while, and save the screen as an SVG file"
)
options = parser.parse_args()
sys.exit(main(demo=not options.no_demo, logs=options.logs, root=Path.cwd(), record=options.record))
