"""What the torture happens in: tiny recipes and their data, a small disk, a group to squeeze.

Everything is made here and thrown away afterwards. Besides what is here the processes are those of a user:
`plimsoll train` with its own command line, environment and files.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from training_process import ENVIRONMENT, MIB, PLIMSOLL, MemoryGroup, NoGroup

STEPS, SAVE_EVERY, EVALUATE_EVERY = 160, 4, 40
DISK_BYTES = 32 * MIB
PINNED = "--memory 900MiB --prefetch 1 --log-every 1 --quiet"
MODEL = "--width 32 --layers 2 --heads 1"

RECIPE = '''
"""A recipe of a user's own, whose rows cannot be read while a file says so."""
import os, time
import jax, jax.numpy as jnp, numpy as np, optax, plimsoll

class Rows:
    def __init__(self):
        self.x = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if os.path.exists(os.environ["TORTURE_RAISES"]):
            raise RuntimeError("the shelf with this row has fallen over")
        time.sleep(0.002)
        return {"x": self.x[index], "y": self.x[index].sum(keepdims=True)}

def init(key):
    return {"in": jax.random.normal(key, (16, 32)) * 0.2, "out": jnp.zeros((32, 1))}

def loss(params, batch):
    error = (jnp.tanh(batch["x"] @ params["in"]) @ params["out"] - batch["y"]) ** 2
    return jnp.sum(error), error.size

recipe = plimsoll.recipe(init=init, loss=loss, data=Rows, validation_data=Rows, optimizer=optax.adam(1e-2),
                         batch_size=8)
'''


@dataclass(frozen=True)
class Course:
    """A recipe to train: its command but for --run, and the data file that it reads, if any."""

    name: str
    words: tuple[str, ...]
    data: Path | None

    def command(self, run: Path, *more: str) -> list[str]:
        return [*PLIMSOLL, "train", *self.words, "--run", str(run), *more]


class World:
    """Use it as a context: what it mounts and makes is gone afterwards."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.raises = scratch / "raises"
        self.outside = ExitStack()
        self.courses: dict[str, Course] = {}
        self.living: subprocess.Popen[bytes] | None = None
        self.group: MemoryGroup | None = None
        self.said: dict[str, str] = {}
        """How the disk and the memory are made scarce, in words."""

    def __enter__(self) -> World:
        self.runs = self.scratch / "runs"
        self.disk = self.outside.enter_context(small_disk(self.runs))
        self.said["disk"] = f"a tmpfs of {DISK_BYTES // MIB} MiB" if self.disk else "not filled: nothing may be mounted"
        try:
            self.group = self.outside.enter_context(MemoryGroup(2**40))
            self.said["memory"] = "a memory control group"
        except NoGroup as problem:
            self.said["memory"] = f"not squeezed: {problem}"
        self.courses = {course.name: course for course in self._courses()}
        for course in self.courses.values():
            if course.data is not None:
                shutil.copy2(course.data, self.pristine(course))
        return self

    def __exit__(self, *_: object) -> None:
        if self.living is not None and self.living.poll() is None:
            self.living.kill()
            self.living.wait()
        self.outside.close()

    def pristine(self, course: Course) -> Path:
        assert course.data is not None
        return course.data.with_name(course.data.name + ".pristine")

    def restore(self, course: Course) -> None:
        """The data as it was, and no fault in force."""
        if course.data is not None:
            shutil.copy2(self.pristine(course), course.data)
        self.raises.unlink(missing_ok=True)
        if self.disk is not None:
            self.disk.free()
        if self.group is not None:
            self.group.squeeze(2**40)

    @property
    def environment(self) -> Mapping[str, str]:
        own = {"TORTURE_RAISES": str(self.raises)}
        return {"PLIMSOLL_CACHE": str(self.scratch / "cache"), **ENVIRONMENT, **own}

    def _courses(self) -> Iterator[Course]:
        text, windows = _text(self.scratch / "text.txt"), _windows(self.scratch / "windows.h5")
        (self.scratch / "mine.py").write_text(RECIPE)
        length = f"--steps {STEPS} --save-every {SAVE_EVERY} --eval-every {EVALUATE_EVERY}"
        words = f"""stories --dataset-id {text} {MODEL} --vocab-size 300 --seq-len 32 --batch-size 4 {PINNED} {length}
            --gradient-accumulation-steps 2 --shuffle-buffer-size 20 --micro-batch 4 --remat none --loss-chunk 0
            --precision float32 --ema-decay 0.9 --ema-bits 16"""
        yield Course("stories", tuple(words.split()), text)
        words = f"control --data {windows} {MODEL} --batch-size 16 --mix-chunks 2 {PINNED} {length}"
        pins = "--validation-rows 40 --micro-batch 16 --remat none --precision float32"
        yield Course("control", (*words.split(), *pins.split()), windows)
        words = f"{self.scratch / 'mine.py'} {PINNED} {length} --micro-batch 8"
        yield Course("mine", tuple(words.split()), None)


class Tmpfs:
    """A file system of its own, filled by a file."""

    def __init__(self, path: Path) -> None:
        self.filler = path / "filler"

    def fill(self, *, leave: int) -> None:
        room = max(0, shutil.disk_usage(self.filler.parent).free - leave)
        with open(self.filler, "ab") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(1, file.tell() + room))

    def free(self) -> None:
        self.filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path) -> Iterator[Tmpfs | None]:
    """Mounts one; None where nothing may be mounted, and no disk is filled."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield Tmpfs(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False)


def rows_of(run: Path) -> list[dict]:
    """Whole rows only: the last one may be half there."""
    path = run / "metrics.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [json.loads(line) for line in whole.splitlines()]


def _text(path: Path) -> Path:
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghij", k=drawn.randint(2, 7))) for _ in range(120)]
    path.write_text("\n\n".join(" ".join(drawn.choices(words, k=drawn.randint(20, 80))) for _ in range(400)))
    return path


def _windows(path: Path) -> Path:
    """Writes the layout of `prepare control`, with its checksums, and nothing simulated."""
    import h5py
    import numpy as np

    random_, rows, families = np.random.default_rng(0), 600, ("Cart", "Pendulum")
    of = random_.integers(0, 2, rows)
    inputs = random_.standard_normal((rows, 8, 19)).astype(np.float32)
    masks = (np.arange(6) < (of + 1)[:, None]).astype(np.float32)
    columns = {
        "input_sequences": inputs,
        "controls": masks * inputs[:, -1, :6] * 0.1,
        "control_masks": masks,
        "system_ids": np.array(families, "S50")[of],
        "trajectory": np.arange(rows) // 4,
        "variant": (np.arange(rows) // 100).astype(np.int32),
    }
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            shape = (64, *values.shape[1:])
            file.create_dataset(name, data=values, chunks=shape, compression="lzf", fletcher32=True)
        file.attrs["train_rows"] = rows * 5 // 6
        for row, name in enumerate(families):
            file[f"normalization/{name}/control_std"] = np.full(row + 1, 0.1, np.float32)
    return path
