"""Many processes, one run: the command that was typed watches one that trains; the first of those prepares and plans.

Part of the joint. What the first one makes before training (recipe, plan, tokenizer, held-out set) goes to the others,
who keep it in a folder of their own while they train: they need no disk in common, and write nothing of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from plimsoll.errors import PlimsollError, RecipeError, RunError
from plimsoll.planner import chips
from plimsoll.processes import environment
from plimsoll.processes.supervise import watched
from plimsoll.recipes.base import Prepared, Recipe
from plimsoll.recipes.saved import from_dict, to_dict
from plimsoll.runs import remote
from plimsoll.units import whole_number

LOST = 3
AGREED_ON = (
    *("jax", "jaxlib", "numpy", "optax", "flax", "orbax-checkpoint"),
    *("grain", "tokenizers", "datasets", "h5py", "pyarrow"),  # by which each process makes its own rows
)
LAST_PORT = 65_535


@dataclass(frozen=True)
class Asked:
    """How the processes find one another; None where the cluster says it."""

    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None


def asked(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    *,
    chip: str | None = None,
    variables: Mapping[str, str] = os.environ,
) -> Asked | None:
    """None where this process trains alone. Only the variables of a cluster of several make it look for others."""
    given = (coordinator, processes, process)
    if all(one is None for one in given):
        return Asked() if _in_cluster(variables) or _several_hosts(chip) else None
    if coordinator is None or processes is None or process is None:
        raise RecipeError(
            "--coordinator HOST:PORT, --processes N and --process I go together: the first machine's address and a free"
            " port there, how many processes there are, and which of them this one is, from 0"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not 0 < (whole_number(port) or 0) <= LAST_PORT:
        raise RecipeError(
            f"--coordinator {coordinator[:80]} is not HOST:PORT, like 10.0.0.1:9911, with a port of at most"
            f" {LAST_PORT:,}"
        )
    if not 0 <= process < processes:
        raise RecipeError(
            f"--process {process} is none of --processes {processes}: they are numbered from 0 to {processes - 1}"
        )
    return Asked(coordinator, processes, process) if processes > 1 else None


def _in_cluster(variables: Mapping[str, str]) -> bool:
    """Slurm's `srun`, Open MPI's `mpirun`, or Kubernetes on TPUs, with more than one process."""
    counts = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
    slurm = {"SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID"} <= variables.keys()
    several = [(whole_number(variables.get(name, "")) or 0) > 1 for name in counts]
    started = slurm or "OMPI_MCA_orte_hnp_uri" in variables
    return (started and any(several)) or "," in variables.get("TPU_WORKER_HOSTNAMES", "")


def _several_hosts(chip: str | None) -> bool:
    return chip not in (None, "cpu") and chips.chip(chip).platform == "tpu" and chips.chip(chip).hosts > 1


def start(recipe: Recipe, options: Any, found: Asked) -> int:
    """The exit code of the process that trains here, watched to its end; signals are handed on to it."""
    target = chips.chip(options.chip or "cpu")
    question = {
        **dataclasses.asdict(found),
        "recipe": to_dict(recipe),
        "options": {field.name: getattr(options, field.name) for field in dataclasses.fields(options)},
    }
    variables = environment.for_several(target.platform)
    with _door(options) as door:
        question |= {"door": door and door.number, "watched_by": os.getpid()}
        command = [sys.executable, "-m", "plimsoll.worker", "together", json.dumps(question)]
        code, _ = watched(command, variables, pass_fds=[door.number] if door else [])
    if door and door.behind is not None:
        print(f"error: {door.behind}", file=sys.stderr)
        code = code or remote.BEHIND
    if code == 128 + signal.SIGABRT:
        print(f"error: {_lost('its connection to the others broke')}", file=sys.stderr)
        return LOST
    return code


def _door(options: Any) -> contextlib.AbstractContextManager[remote.Door | None]:
    """Of a run in a bucket: whichever process is the first has it fetched and sent by the one that watches it."""
    if not remote.is_address(options.run):
        return contextlib.nullcontext()
    return remote.on_demand(options.run, options.quiet)


def _lost(how: str) -> str:
    return (
        f"a process that trains with this one is gone ({how}): nothing more can be summed, so this one stops. What was"
        " saved is whole: start all of them again with the same command, and they continue from there"
    )


def train_together(question: Mapping[str, Any], interruption: Any) -> NoReturn:
    """In the process that trains. Ends it at once, with its code: whoever waits for the others is not waited for."""
    import jax

    from plimsoll.training import allocator, distributed

    code, scratch = 1, []
    _mute_libraries()
    try:
        where = (question["coordinator"], question["processes"], question["process"])
        distributed.join(*where, lambda: interruption.signal)
        code = _train(question, interruption, scratch)
        distributed.leave()
    except PlimsollError as problem:
        print(f"error: {problem}", file=sys.stderr)
        code = problem.exit_code
    except jax.errors.JaxRuntimeError as problem:
        if allocator.refused(problem):
            raise
        print(f"error: {_lost(str(problem).splitlines()[0][:200])}", file=sys.stderr)
        code = LOST
    finally:
        for folder in scratch:
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _mute_libraries() -> None:
    """Gloo prints a line for each device whenever devices meet for the first time: what Python prints goes on."""
    ours = os.dup(1)
    sys.stdout = os.fdopen(ours, "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _train(question: Mapping[str, Any], interruption: Any, scratch: list[Path]) -> int:
    from plimsoll.engine.session import train_here
    from plimsoll.training import distributed

    recipe = from_dict(question["recipe"])
    board = distributed.Board(lambda: interruption.signal)
    _require_alike(board, question)
    if distributed.is_first():
        session = _prepared(recipe, question["options"], board, question["door"])
    else:
        session = board.read("session")
        if "refused" in session:
            board.wait_until_read("session")
            refusal = PlimsollError(f"the first process says: {session['refused']}")
            refusal.exit_code = session["exit_code"]
            raise refusal
        folder = Path(tempfile.mkdtemp(prefix="plimsoll-process-"))
        scratch.append(folder)
        (folder / "checkpoints").mkdir()
        board.read_files("run", folder)
        session |= {"run": str(folder), "quiet": True, "tracker": "none", "profile": 0, "profiler_port": None}
    _require_same_data(board, recipe, Path(session["run"]))
    return train_here(session, interruption).code


def _prepared(recipe: Recipe, options: Mapping[str, Any], board: Any, door: int | None) -> dict[str, Any]:
    """By the first process, for all: the run's folder, its data, its plan."""
    from plimsoll.api import train
    from plimsoll.runs.folder import RunFolder
    from plimsoll.training.distributed import processes

    say = (lambda text: None) if options["quiet"] else (lambda text: print(text, flush=True))
    try:
        options = options if door is None else {**options, "run": remote.asked_through(door)}
        ready = train.prepare_run(recipe, train.TrainOptions(**options), say, processes=processes())
    except PlimsollError as problem:
        board.write("session", {"refused": str(problem), "exit_code": problem.exit_code})
        board.wait_until_read("session")
        raise
    session = json.loads(ready.command[-1])
    folder = RunFolder(session["run"])
    board.write("session", session | {"lock": None})
    board.write_files("run", folder.path, folder.prepared())
    return session


def _require_alike(board: Any, question: Mapping[str, Any]) -> None:
    """All of them hear what is different, and with whom."""
    from plimsoll.training.distributed import is_first, process, processes

    board.write(f"facts-{process()}", _facts(question))
    if is_first():
        each = [board.read(f"facts-{number}") for number in range(processes())]
        board.write(
            "differences", [words for number, one in enumerate(each) for words in _differences(each, number, one)]
        )
    if differences := board.read("differences"):
        board.wait_until_read("differences")
        raise RunError(
            f"the processes of this run were not started alike: {'; '.join(differences)}. Start all of them with the"
            " same command and the same code"
        )


def _require_same_data(board: Any, recipe: Recipe, folder: Path) -> None:
    """Each makes its own rows of what it reads under the same name: all of them hear who has other data, or none."""
    from plimsoll.training.distributed import is_first, process, processes

    said = None
    try:
        recipe.training_data_changed(Prepared(**json.loads((folder / "data.json").read_text())))
    except PlimsollError as problem:
        said = str(problem)
    board.write(f"data-{process()}", said)
    if is_first():
        each = [board.read(f"data-{number}") for number in range(processes())]
        board.write("data", [f"process {number} says: {words}" for number, words in enumerate(each) if words])
    if refusals := board.read("data"):
        board.wait_until_read("data")
        raise RunError(f"the processes of this run do not read the same data. {'; '.join(refusals)}")


def _facts(question: Mapping[str, Any]) -> dict[str, Any]:
    from importlib import metadata

    code = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        code.update(path.read_bytes())
    versions = {name: metadata.version(name) for name in AGREED_ON}
    own = {"quiet", "run", "profiler_port"}  # of no consequence to the others
    options = {f"--{name}": value for name, value in question["options"].items() if name not in own}
    recipe = question["recipe"]
    fields = {f"--{name}".replace("_", "-"): value for name, value in recipe["fields"].items()}
    rest = {name: value for name, value in recipe.items() if name != "fields"}
    python = ".".join(map(str, sys.version_info[:3]))
    return {"host": socket.gethostname()} | {
        "python": python, **versions, "the code of plimsoll": code.hexdigest()[:12], **options, **fields, **rest
    }  # fmt: skip


def _differences(each: list[dict[str, Any]], number: int, one: Mapping[str, Any]) -> list[str]:
    first = each[0]
    return [
        f"{name} is {one.get(name)!r} on process {number} ({one['host']}) and {first.get(name)!r} on process 0"
        f" ({first['host']})"
        for name in dict.fromkeys([*first, *one])
        if name != "host" and one.get(name) != first.get(name)
    ]
