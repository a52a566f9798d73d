"""Runs that cannot be broken: random faults against real `plimsoll train` processes, until time or number is up.

    python benchmarks/torture.py --minutes 25 --seed 1 [--faults 200] [--resume]

Runs of tiny recipes (a text, an HDF5 file, a recipe file of one's own) are killed, told to stop, frozen, squeezed, left
without disk and without data, and their files are damaged; after each fault the same command continues. A run's last
state must have the fingerprint of an undisturbed one, and every step its loss.

The disk is filled where a tmpfs may be mounted, and memory squeezed where control groups may be made. Every fault and
run is a row of bench-out/torture.jsonl; with --resume the rows that are there count, and the runs go on being numbered
from there. Ends with 1 if a run was lost, a step silently different, or anything else not as it should be.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from torture_faults import Life
from torture_run import Tortured, options_of, prepared, tortured
from torture_world import World

ORDER = ("stories", "control", "stories", "mine")


def main() -> int:
    options = options_of(__doc__, "torture", minutes=25, faults=None)
    options.add_argument("--recipes", nargs="*", default=ORDER, choices=sorted({*ORDER}))
    given = options.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it, and so would every run
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if not given.resume:
        given.out.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="plimsoll-torture-") as folder, World(Path(folder)) as world:
        print(f"disk: {world.said['disk']}; memory: {world.said['memory']}", flush=True)
        courses = {name: world.courses[name] for name in dict.fromkeys(given.recipes)}
        undisturbed = {
            name: prepared(course, world, lambda run, course=course: Life(world, course, run))
            for name, course in courses.items()
        }
        return tortured(
            given,
            world,
            given.recipes,
            lambda name, number, drawn: Tortured(world, courses[name], *undisturbed[name], number, drawn),
        )


if __name__ == "__main__":
    sys.exit(main())
