"""The wheel in empty environments: built, installed, asked for help and for a plan, in each Python that is here.

    python benchmarks/package.py [--versions 3.11 3.12 3.13] [--keep FOLDER]

Every environment is new and has nothing but the wheel and what it asks the registry for; the checkout is not on its
path. In it: `pip check`, `plimsoll --version`, `plimsoll --help`, `plimsoll plan stories --memory 1GiB --json`, and the
package's type information. A version that is not here is said and skipped; with none at all the exit code is 1, as
where anything fails. One line for each; about 1.5 GB of disk and two minutes each while it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
DISTRIBUTION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["name"]


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for program in filter(None, found):  # a shim may be there without its Python
        asked = [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return program
    return None


def said(command: Sequence[str], **options: object) -> str:
    """Returns what a command printed; ends this program with its errors where it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def wheel(folder: Path) -> Path:
    said(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            str(folder),
            str(ROOT),
        ]
    )
    return next(folder.glob(f"{DISTRIBUTION.replace('-', '_')}-*.whl"))


def checked(python: str, built: Path, folder: Path) -> dict[str, object]:
    """Checks what an empty environment with the wheel in it says."""
    begun = time.monotonic()
    said([python, "-m", "venv", str(folder)])
    inside = str(folder / "bin/python")
    said([inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(built)])
    said([inside, "-m", "pip", "check"])
    installed = time.monotonic() - begun
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean |= {"PLIMSOLL_CACHE": str(folder / "cache"), "PLIMSOLL_CALIBRATION": "off"}
    program = str(folder / "bin/plimsoll")
    usage = said([program, "--help"], cwd=folder, env=clean)
    planned = json.loads(said([program, "plan", "stories", "--memory", "1GiB", "--json"], cwd=folder, env=clean))
    typed = "import importlib.resources as r; print(r.files('plimsoll').joinpath('py.typed').is_file())"
    if "plimsoll train" not in usage or not planned["fits"]:
        sys.exit(f"{program} answers, but not as it should:\n{usage}\n{json.dumps(planned)[:2000]}")
    if said([inside, "-c", typed], cwd=folder, env=clean).strip() != "True":
        sys.exit(f"{built.name} has no type information")
    jax = said([inside, "-c", "import importlib.metadata as m; print(m.version('jax'))"], cwd=folder, env=clean)
    return {
        "version": said([program, "--version"], cwd=folder, env=clean).strip(),
        "jax": jax.strip(),
        "install_seconds": round(installed),
        "predicted_peak_mib": round(planned["predicted_peak_bytes"] / 2**20, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=VERSIONS)
    parser.add_argument("--keep", type=Path, help="keep the wheel in this folder")
    options = parser.parse_args()
    tried = 0
    with tempfile.TemporaryDirectory(prefix="plimsoll-package-") as place:
        built = wheel(Path(place))
        print(f"{built.name}: {built.stat().st_size / 1000:.0f} kB", flush=True)
        for version in options.versions:
            python = interpreter(version)
            if python is None:
                print(f"{version}: not here", flush=True)
                continue
            tried += 1
            found = checked(python, built, Path(place) / version)
            print(f"{version}: {json.dumps(found)}", flush=True)
            shutil.rmtree(Path(place) / version)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built, options.keep)
    return 0 if tried else 1


if __name__ == "__main__":
    sys.exit(main())
