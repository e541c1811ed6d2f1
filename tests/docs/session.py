"""A reader who follows a page: one shell and one Python interpreter, in an empty directory, against real servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from dev.ports import free_port, is_answering
from dev.site.markdown import Block
from tests.conftest import MONGO_PORT
from tests.docs.transcript import Transcript
from tests.eventually import eventually

ROOT = Path(__file__).parents[2]
INTERPRETER = Path(__file__).with_name("interpreter.py")
PROMPT, PYTHON_PROMPT = "$ ", ">>> "
END = "-- end of the command --"
READY = {"celery -A tasks worker": " ready.", "celery -A tasks beat": "beat: Starting"}  # in the log of a program
WITHIN = 120.0  # seconds until a command that is repeated shows the expected output


class Session:
    """Executes blocks in their order. A context manager that ends every process that the page started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._transcript = Transcript()
        ours = ("QM_", "MANAGED_", "APP_", "PYTHONPATH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        kept |= {
            "HOME": str(directory),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "QM_WEB_PORT": str(self._port),
            "COLUMNS": "200",
        }
        self._shell = self._start(["bash", "--norc"], kept, stderr=subprocess.STDOUT)
        self._interpreter: subprocess.Popen[str] | None = None
        self._started: dict[str, str] = {}  # the commands of the programs in the background, by their process number

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in filter(None, (self._shell, self._interpreter)):
            with process, suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def execute(self, block: Block) -> None:
        """Execute a block. Raises AssertionError with the command and its output if it does not do what is shown.

        A command after which nothing is shown must succeed.
        """
        if block.marker.startswith("setup:"):
            self._script(block.marker.removeprefix("setup:"))
        elif block.is_session:
            self._commands(block)
        elif block.language in ("bash", "sh"):
            self._script(block.code)
        else:
            self._python(block)

    def check_background(self) -> None:
        """Raise AssertionError if a program that the page started in the background has ended."""
        _, running = self._shell_command("jobs -rp")
        assert set(self._started) <= set(running.split()), [
            command for pid, command in self._started.items() if pid not in running.split()
        ]

    def logs(self) -> str:
        """Return the ends of the logs of the programs in the background."""
        logs = sorted(self._directory.glob("background*.log"))
        return "".join(f"{log.name}\n{log.read_text(errors='replace')[-3000:]}\n" for log in logs)

    def _script(self, code: str) -> None:
        for command in code.replace("\\\n", " ").splitlines():
            if command.strip() and not command.lstrip().startswith("#"):
                status, output = self._shell_command(command)
                assert status == 0, f"{command}\n{output}"

    def _python(self, block: Block) -> None:
        named = re.match(r"file: (\S+)", block.marker) or re.match(r"# (\S+\.py)\n", block.code)
        if named:
            path = self._directory / named[1].removeprefix("~/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
        else:
            self._interpret("exec", block.code)

    def _commands(self, block: Block) -> None:
        code = self._here(re.sub(r" *\\\n *", " ", block.code))
        is_compared, is_repeated = block.marker != "run: the output differs", block.marker == "run: until it is so"
        for command, expected in re.findall(r"^((?:\$|>>>) .*)\n((?:(?!\$ |>>> ).*\n)*)", code, re.MULTILINE):

            def is_as_shown(command: str = command, expected: str = expected) -> bool:
                status, output = self._result_of(self._transcript.filled_in(command))
                assert status == 0 or expected.strip(), f"{command}\n{output}"
                assert not is_compared or self._transcript.matches(expected, output), f"{command}\n{output}"
                return True

            eventually(is_as_shown, within=WITHIN if is_repeated else 0, every=1)

    def _result_of(self, command: str) -> tuple[int, str]:
        """Return the status and the output. Code that raises has no status: it raises AssertionError here."""
        if command.startswith(PYTHON_PROMPT):
            return 0, self._interpret("single", command.removeprefix(PYTHON_PROMPT) + "\n")
        if command == f"{PROMPT}python":
            return 0, ""  # the lines after it are for the interpreter
        return self._shell_command(command.removeprefix(PROMPT))

    def _shell_command(self, command: str) -> tuple[int, str]:
        """Return the status and the output. A program in the background is waited for until it serves."""
        command = self._here(command)
        if command.endswith(" &"):
            return self._in_background(command.removesuffix(" &"))
        self._write(self._shell, f"{command}\nprintf '\\n{END} %s\\n' $?\n")
        lines: list[str] = []
        while not (line := self._read(self._shell)).startswith(END):
            lines.append(line)
        return int(line.split()[-1]), "".join(lines).removesuffix("\n")

    def _in_background(self, command: str) -> tuple[int, str]:
        log = self._directory / f"background{len(self._started)}.log"
        log.touch()
        _, pid = self._shell_command(f"{command} >>{log} 2>&1 & echo $!")
        self._started[pid.strip()] = command

        def is_ready() -> bool:
            if "queue-manager web" in command:
                return is_answering(self._port)
            return all(line in log.read_text() for name, line in READY.items() if command.startswith(name))

        def has_ended() -> bool:
            return pid.strip() not in self._shell_command("jobs -rp")[1].split()

        eventually(lambda: has_ended() or is_ready(), within=WITHIN)
        self.check_background()
        return 0, ""

    def _interpret(self, mode: str, code: str) -> str:
        if self._interpreter is None:
            _, variables = self._shell_command("python -c 'import json, os; print(json.dumps(dict(os.environ)))'")
            self._interpreter = self._start([sys.executable, str(INTERPRETER)], json.loads(variables), stderr=None)
        self._write(self._interpreter, json.dumps([mode, self._here(code)]) + "\n")
        answer: dict[str, Any] = json.loads(self._read(self._interpreter))
        assert not answer["error"], f"{code}\n{answer['error']}"
        return answer["output"]

    def _start(self, command: list[str], env: dict[str, str], *, stderr: int | None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self._directory,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )

    def _here(self, text: str) -> str:
        """Return `text` with the ports and paths that the page's servers and programs have in this session."""
        for shown, actual in (
            ("127.0.0.1:6002", f"127.0.0.1:{self._port}"),
            ("127.0.0.1:27017", f"127.0.0.1:{MONGO_PORT}"),
            (".venv/bin/", ""),
        ):
            text = text.replace(shown, actual)
        return text

    @staticmethod
    def _write(process: subprocess.Popen[str], text: str) -> None:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.flush()

    @staticmethod
    def _read(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the program ended"
        return line
