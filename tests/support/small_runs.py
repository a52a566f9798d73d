"""Real runs of a tiny recipe in processes of their own: prepared and planned once, then copied."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from once import made_once
from plimsoll.files.run_folder import RunFolder
from plimsoll.training.checkpoints import read_leaves
from plimsoll.training.fingerprint import fingerprint
from plimsoll.training.schedule import best_of

STEPS, SAVE_EVERY = 24, 4
PATIENCE = 600
"""Seconds until a process that neither ends nor shows what is waited for counts as stuck."""


def write_text(path):
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghij", k=drawn.randint(2, 7))) for _ in range(120)]
    documents = (" ".join(drawn.choices(words, k=drawn.randint(20, 80))) for _ in range(400))
    path.write_text("\n\n".join(documents))
    return path


class Runs:
    """One text, one compile cache, one prepared run for all processes of a test run; every test gets a copy of it."""

    def __init__(self, tmp_path_factory, name: str = "text") -> None:
        self._factory, self._name = tmp_path_factory, name
        self.folder = tmp_path_factory.mktemp("runs")
        self.text = (
            made_once(tmp_path_factory, "text-of-runs", lambda folder: write_text(folder / "text.txt")) / "text.txt"
        )
        self._number = itertools.count()

    def command(self, run: Path, *options: str) -> list[str]:
        words = f"""
            --width 32 --layers 2 --heads 1 --vocab-size 300 --seq-len 32 --batch-size 4
            --gradient-accumulation-steps 2 --steps {STEPS} --save-every {SAVE_EVERY} --shuffle-buffer-size 20
            --memory 900MiB --micro-batch 4 --remat none --loss-chunk 0 --precision float32 --prefetch 1
            --log-every 1 --quiet --ema-decay 0.9 --ema-bits 16
        """.split()
        command = [sys.executable, "-m", "plimsoll.cli.main", "train", "stories", "--dataset-id", str(self.text)]
        return [*command, *words, "--run", str(run), *options]

    def prepared(self, *options: str) -> Path:
        """A fresh run folder, planned, with no step taken. Another recipe takes over the first one's plan."""

        def prepare(folder: Path) -> None:
            plan = ["--plan", str(self.prepared() / "plan.json")] if options else []
            ended = self.run(folder / "run", *options, *plan, "--max-steps", "1")
            assert ended.returncode == 0, ended.stderr
            for name in ("checkpoints", "tensorboard"):
                shutil.rmtree(folder / "run" / name, ignore_errors=True)
            for name in ("metrics.jsonl", "log.txt", "ledger.json"):
                (folder / "run" / name).unlink(missing_ok=True)

        return self.copied(self._once("prepared", options, prepare))

    def trained(self, *options: str) -> Path:
        """The folder of a run that was trained with these options, for all tests that only look at it."""

        def train(folder: Path) -> None:
            shutil.move(self.prepared(), folder / "run")
            ended = self.run(folder / "run", *options)
            assert (ended.returncode, ended.stderr) == (0, "")

        return self._once("trained", options, train)

    def _once(self, what: str, options: tuple[str, ...], make) -> Path:
        name = "-".join([what, self._name, *options]).replace("/", "-")
        return made_once(self._factory, name, make) / "run"

    def copied(self, run: Path) -> Path:
        copy = self.folder / f"run-{next(self._number)}"
        shutil.copytree(run, copy)
        return copy

    def start(self, run: Path, *options: str) -> subprocess.Popen:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        return subprocess.Popen(
            self.command(run, *options), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, run: Path, *options: str) -> subprocess.CompletedProcess:
        process = self.start(run, *options)
        out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run_until(
        self, run: Path, seen, *options: str, send=signal.SIGKILL, of_process=False
    ) -> subprocess.CompletedProcess:
        """Sends `send` at the moment `seen(run)` is true; fails where the run ended before.

        With `of_process`, `seen` is made from the process first: `seen(process)(run)`.
        """
        process = self.start(run, *options)
        seen = seen(process) if of_process else seen
        deadline = time.monotonic() + PATIENCE
        while not seen(run):
            if process.poll() is not None:
                out, err = process.communicate()
                raise AssertionError(f"ended with {process.returncode} before it was seen: {out}{err}")
            assert time.monotonic() < deadline
            time.sleep(0.001)  # looking all the time took as much CPU as the run
        process.send_signal(send)
        out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def rows(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def last_row(run: Path) -> int:
    """The last step of which a whole row has been written."""
    path = run / "metrics.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return json.loads(whole.rpartition("\n")[2])["step"] if whole else 0


def checkpoint_steps(run: Path) -> list[int]:
    """The newest first."""
    return RunFolder(run).saved_steps()[::-1]


def newest_checkpoint(run: Path) -> Path:
    return RunFolder(run).checkpoint(checkpoint_steps(run)[0])


def newest_fingerprint(run: Path) -> str:
    folder = RunFolder(run)
    return fingerprint(read_leaves(newest_checkpoint(run)), folder.position(checkpoint_steps(run)[0]).loader)


def best_evaluation(run: Path, best_by: str = "loss"):
    return best_of(rows(run), checkpoint_steps(run), best_by)
