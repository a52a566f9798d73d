"""What `make demo` printed, as a result file.

    make setup; time make demo 2>&1 | tee demo.txt; python benchmarks/demo_result.py demo.txt --seconds 180

The plan with its bytes, the last step and the bytes that were used, and the beginning of what was sampled, line by line
as printed; --seconds is how long all of it took after the set-up, and --shared says that other programs used the cores
meanwhile. Writes bench-out/demo.json, for docs/keep.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

SAMPLED = 15
"""Lines of the sample, at most."""


def between(lines: Sequence[str], first: str, last: str) -> list[str]:
    """Returns the text from the last line that begins with `first` to the next one that begins with `last`."""
    start = max(at for at, line in enumerate(lines) if line.startswith(first))
    end = next(at for at, line in enumerate(lines) if at > start and line.startswith(last))
    return list(lines[start : end + 1])


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("printed", type=Path)
    options.add_argument("--run", type=Path, default=Path("runs/demo"))
    options.add_argument("--seconds", type=float, required=True)
    options.add_argument("--shared", action="store_true")
    given = options.parse_args()
    lines = given.printed.read_text("utf-8").splitlines()
    session = json.loads((given.run / "sessions.json").read_text())[0]
    steps = json.loads((given.run / "data.json").read_text())["steps"]
    sampled = between(lines, ".venv/bin/plimsoll sample runs/demo", ".venv/bin/plimsoll report runs/demo")[1:-1]
    found = {
        "conditions": {
            "commit": session["commit"],
            "cpu": session["processor"],
            "cores": session["cores"],
            "shared": given.shared,
        },
        "seconds": given.seconds,
        "plan": between(lines, "plan for code", "  and "),
        "steps": [
            max((line for line in lines if line.startswith(f"step {steps}/{steps}")), key=len),
            next(line for line in lines if line.startswith(f"step {steps}: ")),
        ],
        "used": between(lines, "measured peak", "  peak "),
        "sampled": sampled[:SAMPLED],
    }
    out = Path("bench-out/demo.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=1))
    print(out)
