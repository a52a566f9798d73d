"""The tests under each JAX that is supported: environments are made, and the suite runs in each.

    python benchmarks/versions.py [--only 3.12] [--folder bench-out/versions] [--tests "-m 'not slow'"] [--install-only]

The oldest JAX under Python 3.11, the newest 0.11 under 3.12 and the newest 0.12 under 3.13, all within pyproject.toml's
bounds. An environment is kept and used again; each takes about 1.5 GB. One line each: versions, what passed, failed and
was skipped, minutes. The exit code is the number of environments in which something failed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import time
from pathlib import Path

from package import ROOT, interpreter, said

ENVIRONMENTS = {"3.11": "jax==0.10.2", "3.12": "jax>=0.11,<0.12", "3.13": "jax>=0.12,<0.13"}
"""Python to the JAX that it is tested with."""
VERSIONS = """
import sys, jax, jaxlib, flax
print(sys.version.split()[0], jax.__version__, jaxlib.__version__, flax.__version__)
"""


def made(version: str, wanted: str, folder: Path) -> str:
    """Returns the Python of an environment, which is made if it is not there."""
    place = folder / version
    inside = str(place / "bin/python")
    if not (place / "ready").exists():
        python = interpreter(version)
        if python is None:
            raise SystemExit(f"Python {version} is not here: pyenv install {version}")
        said([python, "-m", "venv", "--clear", str(place)])
        pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        said([*pip, "hatchling", "editables"])
        said([*pip, "--no-build-isolation", "--editable", f"{ROOT}[dev]", wanted])
        said([inside, "-m", "pip", "check"])
        (place / "ready").touch()
    return inside


def tested(python: str, options: list[str], log: Path) -> tuple[int, str]:
    """Runs the tests, and returns the exit code and pytest's last line."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    how = ["--numprocesses", "logical", "--maxprocesses", "4", "--dist", "worksteal"]
    with open(log, "w") as file:
        done = subprocess.run(
            [python, "-m", "pytest", *how, *options], cwd=ROOT, env=clean, stdout=file, stderr=subprocess.STDOUT
        )
    lines = [line for line in log.read_text().splitlines() if line.strip()]
    return done.returncode, lines[-1] if lines else "nothing was printed"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=[*ENVIRONMENTS], default=[*ENVIRONMENTS])
    options.add_argument("--folder", type=Path, default=ROOT / "bench-out/versions")
    options.add_argument("--tests", default="-m 'not slow'", help="options of pytest")
    options.add_argument("--install-only", action="store_true", help="make the environments, and test nothing")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for version in given.only:
        python = made(version, ENVIRONMENTS[version], given.folder.absolute())
        about = "Python {}, jax {}, jaxlib {}, flax {}".format(*said([python, "-c", VERSIONS]).split())
        if given.install_only:
            print(about, flush=True)
            continue
        started = time.monotonic()
        code, last = tested(python, shlex.split(given.tests), given.folder / f"{version}.txt")
        failed += code != 0
        print(f"{about}: {last.strip('= ')} ({(time.monotonic() - started) / 60:.0f} min)", flush=True)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
