"""No input of a user's breaks it: damaged and hostile files and options, through the real commands and readers.

    python benchmarks/fuzz.py --count 2000 --seed 1 [--kinds run hdf5] [--resume]

A sound input of each kind is written, one of its files is changed (fuzz_mutate.py), and a command or reader meets it,
in this process: planning and training, which come after reading, are left out. It must succeed or be refused in one
paragraph with code 2; no traceback, nothing written outside its folders, nothing unpickled, evaluated or started
(fuzz_watch.py). A recipe file is code, and is run: of it only the form of the answer is judged.
Each kind has a process of its own, since a C library may crash: that counts, too.

Rows are in bench-out/fuzz.jsonl, one for every kind and one for every finding, the input that made it beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fuzz_mutate import WORDS, changed
from fuzz_seeds import KINDS, READ, Kind, without_planning
from fuzz_watch import Watch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from training_process import ENVIRONMENT

SECONDS = 30
"""That reading a tiny input may take; the first example of a kind, which imports, is not timed."""
MEMORY = 12 * 2**30
OPTIONS = "options"
OF_OPTIONS = ("stories", "control", "sudoku-4x4", "longcontext-nano", "recommend-debug")


class Overdue(BaseException):
    """Raised by the alarm."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--count", type=int, default=2000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--kinds", nargs="*", choices=[*KINDS, OPTIONS], default=[*KINDS, OPTIONS])
    options.add_argument("--resume", action="store_true", help="leave out the kinds that are there already")
    options.add_argument("--out", type=Path, default=Path("bench-out/fuzz.jsonl"))
    options.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given_ = options.parse_args()
    given_.out = given_.out.absolute()  # each kind works in a folder of its own
    given_.out.parent.mkdir(parents=True, exist_ok=True)
    if given_.alone:
        return alone(given_)
    if not given_.resume:
        given_.out.unlink(missing_ok=True)
    done = {row["kind"] for row in rows_of(given_.out) if "count" in row}
    for number, kind in enumerate(given_.kinds):
        if kind not in done:
            count = given_.count * (number + 1) // len(given_.kinds) - given_.count * number // len(given_.kinds)
            started(kind, count, given_)
    rows = rows_of(given_.out)
    print(table(rows))
    return 0 if sum(row.get("count", 0) for row in rows) and not any("finding" in row for row in rows) else 1


def started(kind: str, count: int, given_: argparse.Namespace) -> None:
    words = ["--alone", "--kinds", kind, "--count", str(count), "--seed", str(given_.seed), "--out", str(given_.out)]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "PLIMSOLL_CALIBRATION": "off"}
    code = subprocess.run([sys.executable, __file__, *words], env=ENVIRONMENT | offline, check=False).returncode
    if code:
        keep(given_.out, {"kind": kind, "finding": f"the process ended with {code}", "example": "last input"})


def alone(given_: argparse.Namespace) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    without_planning()
    (name,) = given_.kinds
    with tempfile.TemporaryDirectory(prefix="plimsoll-fuzz-") as folder:
        fuzz = Fuzz(Path(folder), name, given_.out)
        begun = time.monotonic()
        fuzz.run(given_.count, given_.seed)
    row = {"kind": name, "count": sum(fuzz.ends.values()), "seconds": round(time.monotonic() - begun, 1)}
    keep(given_.out, row | {"ends": dict(fuzz.ends)})
    ends = f"{dict(fuzz.ends)} (undamaged: {dict(fuzz.undamaged)})"
    print(f"{name}: {row['count']} inputs in {row['seconds']} s, {ends}, {len(fuzz.found)} findings", flush=True)
    return 0


class Fuzz:
    """One kind, in a folder of its own."""

    def __init__(self, folder: Path, name: str, out: Path) -> None:
        self.name, self.results, self.folder = name, out, folder
        self.inputs, self.made, self.beside = folder / "in", folder / "out", folder / "beside"
        for path in (self.inputs, self.made, self.beside, folder / "cache"):
            path.mkdir()
        os.environ |= {
            "PLIMSOLL_CACHE": str(folder / "cache"),
            "HOME": str(self.beside),
            "TMPDIR": str(folder / "cache"),
        }
        tempfile.tempdir = str(folder / "cache")  # it looked at TMPDIR before
        os.chdir(self.beside)
        self.kind: Kind | None = KINDS.get(name)
        if self.kind is not None:
            self.kind.write(self.inputs)
        self.sound = {path: path.read_bytes() for path in sorted(self.inputs.rglob("*")) if path.is_file()}
        self.watch = Watch(self.inputs, self.made, folder / "cache")
        self.ends: Counter[str] = Counter()
        self.undamaged: Counter[str] = Counter()
        self.found: set[str] = set()

    def run(self, count: int, number: int) -> None:
        for call, _ in self._sound_calls():  # undamaged: what it imports, and that it is read at all
            end = self._end(call)
            self.undamaged[end] += 1
            assert end in ("done", "refused"), f"{self.name}: an undamaged input gives: {end}"

        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            suppress_health_check=[*HealthCheck],
            phases=[Phase.generate],
        )
        @seed(number)
        @given(st.data())
        def once(data: st.DataObject) -> None:
            call, what = self._drawn(data)
            self._restore_but(what)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            end = self._end(call)
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.ends[end if end in ("done", "refused") else "findings"] += 1
            if end not in ("done", "refused") and end.partition(": ")[0] not in self.found:
                self._keep(end, what)

        signal.signal(signal.SIGALRM, _overdue)
        once()

    def _sound_calls(self) -> Iterator[tuple[Callable[[], object], Any]]:
        if self.kind is None:
            return
        for call in dict.fromkeys(call for calls in self.kind.calls.values() for call in calls):
            self._restore_but(None)
            yield (lambda call=call: call(self.inputs)), None

    def _drawn(self, data: st.DataObject) -> tuple[Callable[[], object], Any]:
        """Draws what to call, and the file that was changed with its content, or the words of the command."""
        if self.kind is None:
            words = data.draw(option_words())
            return (lambda: _main(words)), words
        pattern = data.draw(st.sampled_from([*self.kind.calls]))
        files = sorted(path for path in self.inputs.glob(pattern) if path in self.sound)
        path = data.draw(st.sampled_from(files))
        content = data.draw(changed(self.sound[path]))
        call = data.draw(st.sampled_from(self.kind.calls[pattern]))
        return (lambda: call(self.inputs)), (path, content)

    def _restore_but(self, what: Any) -> None:
        shutil.rmtree(self.made, ignore_errors=True)
        self.made.mkdir()
        for path in [*self.inputs.rglob("*")]:
            if path.is_file() and path not in self.sound:
                path.unlink()
        for path, content in self.sound.items():
            if not path.is_file() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        if isinstance(what, tuple):
            what[0].write_bytes(what[1])
        (self.folder / "last").write_bytes(what[1] if isinstance(what, tuple) else repr(what).encode())

    def _end(self, call: Callable[[], object]) -> str:
        """`done`, `refused`, or a finding in words that are the same for the same fault."""
        from plimsoll.errors import PlimsollError

        out, err = io.StringIO(), io.StringIO()
        with self.watch.watching() as seen, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                found = call()
                code = found if isinstance(found, int) else 0
                refusal = err.getvalue() if code else ""
            except PlimsollError as problem:
                code, refusal = 2, f"error: {problem}"
            except SystemExit as problem:
                code, refusal = problem.code if isinstance(problem.code, int) else 1, "error: " + err.getvalue()
            except Overdue:
                return f"took longer than {SECONDS} s"
            except BaseException as problem:
                if isinstance(problem, KeyboardInterrupt):
                    raise
                return _place(problem)
        if seen and not (self.kind and self.kind.is_code):
            return seen[0]
        if strays := [str(path) for path in self.beside.rglob("*")]:
            shutil.rmtree(self.beside, ignore_errors=True)
            self.beside.mkdir()
            os.chdir(self.beside)
            return f"left {strays[0]}"
        if code not in (0, 2, 3):
            return f"ended with {code}: {refusal[-200:]}"
        if code and ("error: " not in refusal or "Traceback" in refusal):
            return f"refused without a word: {refusal[-200:]}"
        return "refused" if code and READ not in refusal else "done"

    def _keep(self, end: str, what: Any) -> None:
        self.found.add(end.partition(": ")[0])
        kept = self.results.parent / "fuzz" / f"{self.name}-{len(self.found)}"
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(what[1] if isinstance(what, tuple) else repr(what).encode("utf-8", "backslashreplace"))
        where = str(what[0].relative_to(self.inputs)) if isinstance(what, tuple) else ""
        keep(self.results, {"kind": self.name, "finding": end, "file": where, "example": str(kept)})
        print(f"  {self.name}, {where}: {end[:300]}", flush=True)


@st.composite
def option_words(draw: Any) -> list[str]:
    """A command with options of its recipe and of its own, and values of any form."""
    from plimsoll.recipes.registry import preset

    name = draw(st.sampled_from(OF_OPTIONS))
    fields = [field.name for field in dataclasses.fields(preset(name))]
    ours = ["memory", "chip", "mesh", "numerics", "micro-batch", "remat", "precision", "plan", "run", "host-memory"]
    words = [draw(st.sampled_from(["plan", "train"])), name]
    for _ in range(draw(st.integers(1, 4))):
        flag = draw(st.sampled_from([*fields, *ours])).replace("_", "-")
        words.append(draw(st.sampled_from([f"--{flag}", f"--{flag}", f"--no-{flag}", f"-{flag[0]}"])))
        if draw(st.integers(0, 9)):
            words.append(draw(WORDS).replace("\0", ""))
    return words if "--run" in words or words[0] == "plan" else [*words, "--run", "../out/run"]


def _main(words: list[str]) -> int:
    from plimsoll.cli.main import main as plimsoll

    return plimsoll(words)


def _place(problem: BaseException) -> str:
    """Kind of error, and the last line of ours that it passed."""
    frames = traceback.extract_tb(problem.__traceback__)
    ours = [frame for frame in frames if "/plimsoll/" in frame.filename] or frames
    last = ours[-1]
    place = f"{last.filename.rpartition('/plimsoll/')[2]}:{last.lineno} in {last.name}"
    return f"{type(problem).__name__} at {place}: {str(problem)[:120]}"


def _overdue(*_: object) -> None:
    raise Overdue


def keep(path: Path, row: dict[str, Any]) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(row) + "\n")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'kind':<14}{'inputs':>7}{'read':>7}{'refused':>9}{'findings':>10}{'seconds':>9}"]
    kinds = [row for row in rows if "count" in row]
    for row in kinds:
        ends = [row["ends"].get(name, 0) for name in ("done", "refused", "findings")]
        lines.append(f"{row['kind']:<14}{row['count']:>7}{ends[0]:>7}{ends[1]:>9}{ends[2]:>10}{row['seconds']:>9.0f}")
    lines.append(f"{'together':<14}{sum(row['count'] for row in kinds):>7}")
    found = [f"{row['kind']}: {row['finding']}" for row in rows if "finding" in row]
    return "\n".join([*lines, f"different findings: {len(found)}", *found])


if __name__ == "__main__":
    sys.exit(main())
