"""Compile environments for chips that are not in this machine: for TPUs, and for NVIDIA GPUs.

In the training environment a compiler's plug-in would add 90 to 320 MB to the memory of every run. So each compiler has
its own virtual environment, which sees the packages of the training environment and adds only the plug-in. The compile
environments are in the user's data folder, or in the folder that `PLIMSOLL_COMPILERS` names. Only
`plimsoll chips --install tpu|cuda` downloads and creates them.

A `.pth` file adds the packages of the training environment. `venv --system-site-packages` would add those of the base
interpreter instead. PYTHONPATH would hide the plug-in's packages behind others, read no `.pth` files (so editable
installs would be missing), and be inherited by every child process.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from platformdirs import user_data_path

from plimsoll.errors import PlimsollError
from plimsoll.processes.environment import for_processes
from plimsoll.units import format_bytes

Platform = Literal["tpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class _Kit:
    """Requirements of one compile environment. Bytes were measured with jax 0.10.2 (docs/chips.md)."""

    extra: str
    """Pip extra of the package jax that installs the compiler."""
    disk_bytes: int
    """Bytes on disk of the finished environment."""
    while_installing: int
    """Bytes on disk for the downloaded wheels and their unpacked files during the installation."""
    plugins: tuple[str, ...]
    """Names of the packages with JAX's plug-in for training on this platform."""
    proof: str
    """Name of the chip for which a function must compile before the environment counts as finished."""


KITS: dict[Platform, _Kit] = {
    "tpu": _Kit(extra="tpu", disk_bytes=740_000_000, while_installing=1_000_000_000, plugins=(), proof="tpu-v5e-1"),
    "cuda": _Kit(
        extra="cuda13",
        disk_bytes=4_100_000_000,
        while_installing=7_100_000_000,
        plugins=("jax-cuda13-plugin", "jax-cuda12-plugin"),
        proof="t4",
    ),
}
MARK = "plimsoll.json"
"""File that is written last in a compile environment. A folder without it is unfinished."""
BORROWED = "plimsoll_environment.pth"
"""File in a compile environment that adds the training environment's package folders, one per line. It uses
`addsitedir`, which also reads the `.pth` files in these folders."""


def folder(platform: Platform) -> Path:
    """Returns the folder of a compile environment, which need not exist."""
    override = os.environ.get("PLIMSOLL_COMPILERS")
    root = Path(override).expanduser().absolute() if override else user_data_path("plimsoll") / "compilers"
    return root / platform


def python_for(platform: Platform) -> Path | None:
    """Returns a Python interpreter that can compile for a platform, or None.

    It is the compile environment's interpreter, if that environment exists and matches the current one. Otherwise it is
    the current interpreter, if it has JAX's plug-in for training, as on a machine with a GPU.
    """
    if not missing(platform):
        return _python(folder(platform))
    versions = {each.version for name in KITS[platform].plugins for each in metadata.distributions(name=name)}
    return Path(sys.executable) if metadata.version("jax") in versions else None


def packages(python: Path | str) -> list[str]:
    """Returns names and versions of an interpreter's packages that make up the compiler: XLA, plug-in, libraries."""
    places = sys.path if str(python) == sys.executable else [_packages(Path(python).parents[1])]
    found = {path.stem for place in places for path in Path(place).glob("*.dist-info")}
    return sorted(name for name in found if name.startswith(("jax", "nvidia", "libtpu")))


def missing(platform: Platform) -> str | None:
    """Returns the reason that a compile environment cannot be used; None if it can be used. Starts no process."""
    try:
        mark = json.loads((folder(platform) / MARK).read_text())
    except (OSError, ValueError):
        return "not installed"
    ours = _requirements()
    changed = [f"{name} {mark.get(name)}, and this is {ours[name]}" for name in ours if mark.get(name) != ours[name]]
    if changed:
        return f"installed for {'; '.join(changed)}"
    python = _python(folder(platform))
    return None if python.exists() else f"broken, its interpreter {os.path.realpath(python)} is gone"


def _python(place: Path) -> Path:
    return place / "bin" / "python"


def _packages(place: Path) -> Path:
    return place / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"


def install(platform: Platform, say: Callable[[str], object]) -> Path:
    """Creates a compile environment, tests it by compiling for one chip, and returns its interpreter.

    If the installation fails or is killed, an earlier environment stays in place.

    Args:
        platform: Platform of the compiler.
        say: Called with progress messages. The first message has the disk space.

    Raises:
        PlimsollError: The disk has too little space, or a step of the installation failed.
    """
    kit, place = KITS[platform], folder(platform)
    say(
        f"making the compile environment for {platform} in {place}: {format_bytes(kit.disk_bytes)} on disk when it is"
        f" done, {format_bytes(kit.while_installing)} while it is made; removing that folder undoes it"
    )

    # Check the free disk space.
    place.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place.parent).free
    if free < kit.while_installing:
        raise PlimsollError(
            f"the compile environment for {platform} needs {format_bytes(kit.while_installing)} of disk while it is"
            f" made, and {format_bytes(free)} are free at {place.parent}: make room, or name another disk with"
            " PLIMSOLL_COMPILERS"
        )

    unfinished = place.with_name(f"{platform}.unfinished")
    with place.with_name(f"{platform}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two concurrent installations would write into the same folder
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            _make(unfinished, platform, say)
            shutil.rmtree(place, ignore_errors=True)
            unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    say(f"ready: `plimsoll plan RECIPE --chip {kit.proof}` uses its compiler from now on")
    return _python(place)


def _make(place: Path, platform: Platform, say: Callable[[str], object]) -> None:
    """Creates a compile environment with access to this environment's packages. Installs and tests the compiler."""
    kit = KITS[platform]
    _run([Path(sys.executable), "-m", "venv", str(place)])
    ours = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        ours.append(site.getusersitepackages())
    real = dict.fromkeys(map(os.path.realpath, ours))  # a link (`current -> 1.2`) may change its target later
    lines = [f"import site; site.addsitedir({path!r})\n" for path in real]
    (_packages(place) / BORROWED).write_text("".join(lines))

    package = f"jax[{kit.extra}]=={metadata.version('jax')}"
    say(f"installing {package}")
    _run([_python(place), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", package])
    say(f"compiling a small function for {kit.proof}")
    _run([_python(place), "-m", "plimsoll.planner.topology", kit.proof], environment=for_processes(platform))
    (place / MARK).write_text(json.dumps(_requirements()))


def _requirements() -> dict[str, str]:
    """Returns the properties of this environment that a compile environment must match: versions and folder."""
    return {
        "jax": metadata.version("jax"),
        "python": ".".join(map(str, sys.version_info[:3])),
        "environment": os.path.realpath(sys.prefix),
    }


def _run(command: list[Path | str], *, environment: dict[str, str] | None = None) -> None:
    """Runs a command of the installation. Raises PlimsollError with the last line of its output if it fails."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    what = " ".join(map(str, command[1:]))
    _, _, last = (done.stderr or done.stdout).strip().rpartition("\n")
    raise PlimsollError(
        f"the compile environment was not made: `python {what}` ended with code {done.returncode}: {last}. An earlier"
        " environment is untouched; correct the cause, and run the command again"
    )
