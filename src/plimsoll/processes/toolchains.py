"""Compile environments for chips that are not here: a TPU's compiler, NVIDIA's, each in a place of its own.

In the training environment a plug-in costs every run 90 to 320 MB of memory. So each is a virtual environment that sees
the packages of this one and adds only its plug-in. They are kept in the user's data folder; `PLIMSOLL_COMPILERS`
names another place. `plimsoll chips --install tpu|cuda` makes them, and nothing is downloaded unasked.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import json
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from platformdirs import user_data_path

from plimsoll.errors import PlimsollError
from plimsoll.processes.environment import for_processes
from plimsoll.units import format_bytes

Platform = Literal["tpu", "cuda"]
PLATFORMS: tuple[Platform, ...] = ("tpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class _Kit:
    """What one environment takes. Bytes were measured with jax 0.10.2 (docs/chips.md)."""

    extra: str
    """Of the package jax."""
    disk_bytes: int
    while_installing: int
    """Downloaded wheels lie beside what is unpacked from them."""
    plugins: tuple[str, ...]
    """Packages, any of which is JAX's plug-in for training."""
    proof: str
    """A chip that must compile before the environment counts as made."""


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
"""Written last: a folder without it was never finished."""
BORROWED = "plimsoll_environment.pth"
BORROWS = "import site; site.addsitedir(PATH)"
"""A line of it; PATH is a string of Python's."""


def folder(platform: Platform) -> Path:
    """Where the environment is, or would be."""
    return _root() / platform


def python_for(platform: Platform) -> Path | None:
    """The interpreter of the environment; None where it is absent or was made for other packages than ours.

    Our own where this environment has the plug-in, as one does that trains on a card.
    """
    if not missing(platform):
        return folder(platform) / "bin" / "python"
    return Path(sys.executable) if _is_here(platform) else None


def _is_here(platform: Platform) -> bool:
    """Whether a plug-in for training is in this environment, for this version of JAX."""
    versions = {each.version for name in KITS[platform].plugins for each in metadata.distributions(name=name)}
    return metadata.version("jax") in versions


def missing(platform: Platform) -> str | None:
    """Why the environment cannot be used, in a few words; None where it can. Starts no process."""
    try:
        made = json.loads((folder(platform) / MARK).read_text())
    except (OSError, ValueError):
        return "not installed"
    ours = _made_for()
    changed = [f"{name} {made.get(name)}, and this is {ours[name]}" for name in ours if made.get(name) != ours[name]]
    return f"installed for {'; '.join(changed)}" if changed else _broken(folder(platform))


def _broken(place: Path) -> str | None:
    """What it borrows may have gone since: an interpreter, the packages of an environment that was removed or moved."""
    python = _python(place)
    if not python.exists():
        return f"broken, its interpreter {os.path.realpath(python)} is gone"
    theirs = _its_packages(place)
    borrowed = [path for line in _read(theirs / BORROWED).splitlines() if (path := _borrowed(line)) is not None]
    gone = [path for path in borrowed if not Path(path).is_dir()]
    if gone:
        return f"broken, it borrows packages from {gone[0]}, which is gone"
    version = metadata.version("jax")
    found = {each.version for each in metadata.distributions(name="jax", path=[*borrowed, str(theirs)])}
    if version not in found:
        where = " or ".join(borrowed) or str(theirs)
        return f"broken, there is {f'jax {found.pop()}' if found else 'no jax'} in {where}, and this is jax {version}"
    return None


def _its_packages(place: Path) -> Path:
    return place / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _borrowed(line: str) -> str | None:
    """The folder that a line of `BORROWED` adds."""
    found = re.fullmatch(re.escape(BORROWS).replace("PATH", "(.*)"), line)
    return ast.literal_eval(found[1]) if found else None


def install(platform: Platform, say: Callable[[str], object]) -> Path:
    """Makes the environment, proves it on one chip, and puts it in its place: whole, or not at all."""
    kit, place = KITS[platform], folder(platform)
    say(
        f"making the compile environment for {platform} in {place}: {format_bytes(kit.disk_bytes)} on disk when it is"
        f" done, {format_bytes(kit.while_installing)} while it is made; removing that folder undoes it"
    )
    _require_room(platform)
    with _alone(platform):
        unfinished = place.with_name(f"{platform}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            _make(unfinished)
            package = f"jax[{kit.extra}]=={metadata.version('jax')}"
            say(f"installing {package}")
            _run([_python(unfinished), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", package])
            say(f"compiling a small function for {kit.proof}")
            _prove(unfinished, platform)
            (unfinished / MARK).write_text(json.dumps(_made_for()))
            shutil.rmtree(place, ignore_errors=True)
            unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    say(f"ready: `plimsoll plan RECIPE --chip {kit.proof}` asks its compiler from now on")
    return _python(place)


def _root() -> Path:
    named = os.environ.get("PLIMSOLL_COMPILERS")
    return Path(named).expanduser().absolute() if named else user_data_path("plimsoll") / "compilers"


def _python(place: Path) -> Path:
    return place / "bin" / "python"


def _made_for() -> dict[str, str]:
    """What an environment must agree with: it borrows our packages, and its plug-in fits one version of JAX."""
    return {
        "jax": metadata.version("jax"),
        "python": ".".join(map(str, sys.version_info[:3])),
        "environment": os.path.realpath(sys.prefix),
    }


def _require_room(platform: Platform) -> None:
    root, needed = _root(), KITS[platform].while_installing
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise PlimsollError(
            f"the folder {root} for compile environments cannot be made: {problem.strerror}. Name a folder you may"
            " write to with PLIMSOLL_COMPILERS"
        ) from None
    free = shutil.disk_usage(root).free
    if free < needed:
        raise PlimsollError(
            f"the compile environment for {platform} needs {format_bytes(needed)} of disk while it is made, and"
            f" {format_bytes(free)} are free at {root}: make room, or name another disk with PLIMSOLL_COMPILERS"
        )


@contextlib.contextmanager
def _alone(platform: Platform) -> Iterator[None]:
    """Two installations at once would write into one folder. A killed one leaves no lock behind."""
    with (_root() / f"{platform}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PlimsollError(
                f"another process is installing the compile environment for {platform} in {_root()}: wait for it"
            ) from None
        yield


def _make(place: Path) -> None:
    """An environment whose imports fall through to ours, editable installs included: `.pth` files of ours are read."""
    _run([Path(sys.executable), "-m", "venv", str(place)])
    ours = [path for path in _our_packages() if Path(path).is_dir()]
    lines = [BORROWS.replace("PATH", repr(path)) + "\n" for path in ours]
    (_its_packages(place) / BORROWED).write_text("".join(lines))


def _our_packages() -> list[str]:
    """As they really lie: a link to an environment (`current -> 1.2`) may be gone, or lead elsewhere, tomorrow."""
    ours = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return list(dict.fromkeys(map(os.path.realpath, ours)))


def _prove(place: Path, platform: Platform) -> None:
    command = [_python(place), "-m", "plimsoll.planner.topology", KITS[platform].proof]
    _run(command, environment=for_processes(platform))


def _run(command: list[Path | str], *, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    what = " ".join(map(str, command[1:]))
    raise PlimsollError(
        f"the compile environment was not made: `python {what}` ended with code {done.returncode}:"
        f" {lines[-1][:400] if lines else 'it said nothing'}. What was there before is untouched; run the command again"
        " once that is mended"
    )
