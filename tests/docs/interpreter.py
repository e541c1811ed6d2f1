"""Executes blocks of Python in one namespace: reads a JSON string per line, and answers each with a JSON string."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback


def main() -> None:
    namespace: dict[str, object] = {"__name__": "documentation"}
    for line in sys.stdin:
        output, error = io.StringIO(), ""
        mode, code = json.loads(line)
        with contextlib.redirect_stdout(output):
            try:
                exec(compile(code, "<documentation>", mode), namespace)
            except Exception:
                error = traceback.format_exc()
        print(json.dumps({"output": output.getvalue(), "error": error}), flush=True)


if __name__ == "__main__":
    main()
