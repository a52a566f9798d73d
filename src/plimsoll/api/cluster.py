"""Several processes that train one run. Each command supervises one training process; the first prepares and plans.

The first training process sends its recipe, plan, tokenizer and held-out set to the others. They keep them in temporary
folders while they train: they need no shared disk, and write nothing into the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from plimsoll.api.accelerator import chip_named, pinned_at_most
from plimsoll.errors import (
    PlimsollError,
    RecipeError,
    RunError,
    ended_by_disk,
    ended_by_kill,
    ended_by_memory,
    raise_refusal,
)
from plimsoll.files import remote
from plimsoll.files.run_folder import RunFolder
from plimsoll.files.store import is_address
from plimsoll.planner import chips
from plimsoll.processes import environment, peers
from plimsoll.processes.handover import replace_process
from plimsoll.processes.interruption import NUMBERS
from plimsoll.processes.peers import LOST
from plimsoll.processes.supervise import watched
from plimsoll.recipes.base import Prepared, Recipe
from plimsoll.recipes.saved import from_dict, to_dict
from plimsoll.units import whole_number

AGREED_ON = (
    *("jax", "jaxlib", "numpy", "optax", "flax", "orbax-checkpoint"),
    *("grain", "tokenizers", "datasets", "h5py", "pyarrow"),  # each process makes its own rows with these
)
"""Packages whose versions must be the same in all processes."""
LAST_PORT, MOST_PROCESSES = 65_535, 100_000
TOKENISED_BY_EACH = (
    "every process reads and tokenises all of the text as training goes, for its own rows. Text on this machine's disk"
    " that the run reads through is tokenised once for each machine, up to 4 GiB, and `plimsoll prepare longcontext`"
    " packs any"
)
"""Note of a run whose text is not tokenised before it."""
EXPLAINED = (0, RunError.exit_code, LOST, *(128 + number for number in NUMBERS))
"""Exit codes of which the process itself has said why."""
SEEN = ".seen-"
"""How files begin by which processes find out whether they see the same folder."""


@dataclass(frozen=True)
class Membership:
    """Place of this process among several; None for fields that JAX finds out from the cluster."""

    coordinator: str | None = None
    """HOST:PORT of the first process."""
    processes: int | None = None
    process: int | None = None
    """Number of this process, from 0."""


def membership(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    *,
    chip: str | None = None,
    variables: Mapping[str, str] = os.environ,
) -> Membership | None:
    """Returns the place of this process among several; None if it trains alone.

    Without the first three arguments it is one of several only if the variables of a cluster say so, or if the chip has
    several hosts.

    Args:
        coordinator: HOST:PORT of the first process.
        processes: Number of processes.
        process: Number of this process, from 0.
        chip: Name of the chip to train on.
        variables: Environment of this process.

    Raises:
        RecipeError: Only some of the first three are given, or one is not valid.
    """
    if coordinator is None and processes is None and process is None:
        target = None if chip is None or chip.lower() == "cpu" else chip_named(chip)
        several_hosts = target is not None and target.platform == "tpu" and target.hosts > 1
        return Membership() if several_hosts or _in_cluster(variables) else None
    if coordinator is None or processes is None or process is None:
        raise RecipeError(
            "--coordinator HOST:PORT, --processes N and --process I go together: the first machine's address and a free"
            " port there, how many processes there are, and which of them this one is, from 0"
        )
    if not 0 < processes <= MOST_PROCESSES:
        raise RecipeError(f"--processes {processes:,} is not a number of processes from 1 to {MOST_PROCESSES:,}")
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
    return Membership(coordinator, processes, process) if processes > 1 else None


def _in_cluster(variables: Mapping[str, str]) -> bool:
    """Returns whether Slurm's `srun`, Open MPI's `mpirun` or a TPU's Kubernetes has started more than one process."""
    counts = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
    slurm = {"SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID"} <= variables.keys()
    several = [(whole_number(variables.get(name, "")) or 0) > 1 for name in counts]
    started = slurm or "OMPI_MCA_orte_hnp_uri" in variables
    return (started and any(several)) or "," in variables.get("TPU_WORKER_HOSTNAMES", "")


def start(recipe: Recipe, options: Any, member: Membership) -> int:
    """Supervises the process that trains here to its end, and returns its exit code. Signals are forwarded to it.

    Args:
        recipe: What to train.
        options: `TrainOptions` of the run. If it is in a bucket, the first process has this one fetch and send it.
        member: Place of the process among the others.
    """
    target = chips.chip(options.chip or "cpu")
    question = {
        **dataclasses.asdict(member),
        "recipe": to_dict(recipe),
        "options": {field.name: getattr(options, field.name) for field in dataclasses.fields(options)},
    }
    in_bucket = is_address(options.run)
    bucket = remote.on_demand(options.run, options.quiet) if in_bucket else contextlib.nullcontext()
    peers.open_streams()
    with tempfile.TemporaryDirectory(prefix="plimsoll-process-", ignore_cleanup_errors=True) as scratch, bucket as door:
        question |= {"door": door and door.number, "watched_by": os.getpid(), "scratch": scratch}
        command = [sys.executable, "-m", "plimsoll.worker", "together", json.dumps(question)]
        variables = environment.for_several(target.platform, pinned_bytes=pinned_at_most())
        code, _ = watched(command, variables, pass_fds=[door.number] if door else [])
        kept = peers.kept(Path(scratch))
    if door and door.behind is not None:
        peers.show_error(door.behind)
        code = code or remote.BEHIND
    return _explained(code, kept)


def _explained(code: int, kept: peers.Kept) -> int:
    """Prints why the process that trained here has ended, where it could not say so itself. Returns its exit code.

    Args:
        code: Exit code of the process.
        kept: What the process has left.
    """
    if code in EXPLAINED:
        return code
    if code == 128 + signal.SIGABRT and kept.outcome is not None:  # JAX missed another one after the end
        return kept.outcome
    lost = peers.ended_by_jax(kept.words, kept.hosts, kept.process) if code == 128 + signal.SIGABRT else None
    if lost is not None:
        peers.show_error(lost)
        return LOST
    if kept.words:
        peers.show(peers.abridged(kept.words))
    if code == 128 + signal.SIGKILL:
        peers.show_error(f"{ended_by_kill()}. Start all processes of the run again, with the same options")
    elif code > 128:
        peers.show_error(peers.killed(code - 128))
    return code


def train_together(question: dict[str, Any], interruption: Any) -> NoReturn:
    """Trains in this process, together with the others, and ends it with its exit code.

    It is ended by `os._exit`: threads that still wait for the other processes are not joined.

    Args:
        question: What `start` has put together.
        interruption: Handler of the signals to stop.
    """
    peers.keep_errors(Path(question["scratch"]))  # before JAX's loggers look for where to print
    import jax

    from plimsoll.training import allocator, distributed

    code = 1
    watch = peers.Watch()
    # Gloo prints a line for each device whenever devices first meet: only what Python prints is shown from here on.
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        member = (question["coordinator"], question["processes"], question["process"])
        distributed.join(*member, lambda: interruption.signal, again=question.get("again", ()))
        outcome = _train(question, interruption, watch)
        if isinstance(outcome, int):
            distributed.of_first("done", True)  # the first one has written all of the run
            peers.keep_outcome(Path(question["scratch"]), outcome)
            with contextlib.suppress(RuntimeError):  # of JAX: another is gone, and nothing was left to do
                distributed.leave(watch.end)  # until all are done, one may still end by an error
        else:
            distributed.leave(watch.end)
            if interruption.signal is None:
                _begin_afresh(question | {"again": [*watch.hosts]}, outcome)
            outcome = 128 + interruption.signal
        code = outcome
    except PlimsollError as problem:
        code = _failed(watch, str(problem), problem.exit_code)
    except OSError as problem:
        code = _failed(watch, f"{ended_by_disk(problem)}, on all processes of the run", LOST)
    except MemoryError as problem:
        code = _failed(watch, f"{ended_by_memory(problem)}, on all processes of the run", LOST)
    except Exception as problem:
        of_jax = isinstance(problem, jax.errors.JaxRuntimeError)  # pyright: ignore[reportUnknownMemberType]
        if (of_jax or peers.failed_sum(problem)) and not allocator.refused(problem):
            said, code = watch.why(str(problem))
            peers.show_error(said)
        else:
            with contextlib.suppress(OSError):
                traceback.print_exc()
            watch.tell(f"{type(problem).__name__}: {problem}")
    peers.leave(code)


def _failed(watch: peers.Watch, said: str, code: int) -> int:
    """Prints by which error this process ends, tells the others, and returns the exit code."""
    peers.show_error(said)
    watch.tell(said)
    return code


def _begin_afresh(question: Mapping[str, Any], session: Mapping[str, Any]) -> NoReturn:
    """Becomes a new process of the same session, once this one has left the others. Streams are as they were."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(stream.fileno(), number)
    lock = session["lock"]
    question = {**question, "session": None if lock is None else session}
    command = [sys.executable, "-m", "plimsoll.worker", "together", json.dumps(question)]
    replace_process(command, os.environ, () if lock is None else (lock,))


def _train(question: Mapping[str, Any], interruption: Any, watch: peers.Watch) -> int | dict[str, Any]:
    """Prepares and trains with the others, and returns the exit code.

    Where this process or another holds memory from compiling, it returns the options of the session instead, which new
    processes are to train.
    """
    import jax

    from plimsoll.engine.session import train_here
    from plimsoll.recipes.own.recipe import OwnRecipe
    from plimsoll.training import distributed

    recipe = from_dict(question["recipe"])
    board = distributed.Board()
    watch.begin(board, distributed.process(), distributed.processes(), lambda: interruption.signal)
    hosts = watch.hosts = _require_alike(board, question)
    scratch = Path(question["scratch"])
    peers.keep_place(scratch, distributed.process(), hosts)
    if isinstance(recipe, OwnRecipe):  # the first one runs its model while it prepares: a device needs all processes
        jax.default_backend()
    if distributed.process() == 0:
        session = question.get("session") or _prepared(recipe, question["options"], board, question["door"])
        board.write("session", session | {"lock": None})
        folder = RunFolder(session["run"])
        board.write_files("run", folder.path, folder.prepared())
    else:
        session = board.read("session")
        if "refused" in session:
            board.wait_until_read("session")
            raise_refusal(session, prefix="the first process says: ")
        folder = scratch / "run"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "checkpoints").mkdir(parents=True)
        board.read_files("run", folder)
        if isinstance(recipe, OwnRecipe):  # the same file may be in another folder here
            RunFolder(folder).write("recipe.json", question["recipe"])
        session |= {"run": str(folder), "quiet": True, "tracker": "none", "profile": 0, "profiler_port": None}
    begun, folder = dict(session), Path(session["run"])
    _require_same_data(board, recipe, folder)
    prepared = Prepared(**json.loads((folder / "data.json").read_text()))
    if recipe.tokenises_while_training(prepared):
        session["notes"] = (*session["notes"], TOKENISED_BY_EACH)
    session |= _where_to_save(board, session, hosts)
    watch.training()
    ending = train_here(session, interruption)
    if ending.afresh is None:
        return ending.code
    return {**begun, "compiled": True, "max_seconds": ending.afresh["max_seconds"]}


def _prepared(recipe: Recipe, options: Mapping[str, Any], board: Any, door: int | None) -> dict[str, Any]:
    """Prepares and plans the run in the first process, and returns the session's options."""
    from plimsoll.api import train
    from plimsoll.training.distributed import processes

    say = train.printing(quiet=options["quiet"])
    try:
        options = options if door is None else {**options, "run": remote.folder_through(door)}
        ready = train.prepare_run(recipe, train.TrainOptions(**options), say, processes=processes())
    except PlimsollError as problem:
        board.write("session", problem.reply())
        board.wait_until_read("session")
        raise
    return json.loads(ready.command[-1])


def _require_alike(board: Any, question: Mapping[str, Any]) -> list[str]:
    """Returns the names of all processes' machines, or raises RunError in every process: what differs between which."""
    from plimsoll.training.distributed import of_each

    _require_counted_alike(board)
    each = of_each("facts", _facts(question), board)
    first = each[0]
    different = [
        f"{name} is {facts.get(name)!r} on process {number} ({facts['host']}) and {first.get(name)!r} on process 0"
        f" ({first['host']})"
        for number, facts in enumerate(each)
        for name in dict.fromkeys([*first, *facts])
        if name != "host" and facts.get(name) != first.get(name)
    ]
    if different:
        board.wait_until_read("facts")
        raise RunError(
            f"the processes of this run were not started alike: {'; '.join(different)}. Start all of them with the"
            " same command and the same code"
        )
    return [facts["host"] for facts in each]


def _require_counted_alike(board: Any) -> None:
    """Raises RunError in every process where one was started with another --processes: it would wait for ever."""
    from plimsoll.training.distributed import process, processes

    board.write(f"count-{process()}", processes())
    others = range(processes()) if process() == 0 else [0]
    different = {number: count for number in others if (count := board.read(f"count-{number}")) != processes()}
    if different:
        said = ", ".join(f"{count} on process {number}" for number, count in different.items())
        board.wait_until_read("count")
        raise RunError(
            f"--processes is {processes()} on process {process()} and {said}: start all of them with the same number"
        )


def _require_same_data(board: Any, recipe: Recipe, folder: Path) -> None:
    """Raises RunError in every process, with those that read other data under the same name, or none."""
    from plimsoll.training.distributed import of_each

    refusal = None
    try:
        recipe.training_data_changed(Prepared(**json.loads((folder / "data.json").read_text())))
    except PlimsollError as problem:
        refusal = str(problem)
    each = of_each("data", refusal, board)
    refusals = [f"process {number} says: {message}" for number, message in enumerate(each) if message]
    if refusals:
        board.wait_until_read("data")
        raise RunError(f"the processes of this run do not read the same data. {'; '.join(refusals)}")


def _where_to_save(board: Any, session: Mapping[str, Any], hosts: Sequence[str]) -> dict[str, Any]:
    """Returns the options of the session that say whether the processes save together, in the first one's folder.

    Each proves that it sees that folder, and that the first sees what it writes there. Where one does not, the first
    process writes what the others send it, and the run's notes say so. Raises RunError where they do not reach it.
    """
    from plimsoll.training.crossing import Crossing
    from plimsoll.training.distributed import of_each, process

    if process() == 0:
        folder, word = Path(session["run"]).absolute() / "checkpoints", secrets.token_hex(8)
        (folder / f"{SEEN}{word}").write_text(word)
        board.write("where-to-save", [str(folder), word])
    folder, word = board.read("where-to-save")
    folder = Path(folder)
    with contextlib.suppress(OSError):  # it is not there, or may not be written to
        if (folder / f"{SEEN}{word}").read_text() == word:
            (folder / f"{SEEN}{word}-{process()}").write_text(socket.gethostname())
    of_each("written", True, board)
    if process() == 0:
        blind = [number for number in range(len(hosts)) if not (folder / f"{SEEN}{word}-{number}").exists()]
        for path in folder.glob(f"{SEEN}*"):
            path.unlink(missing_ok=True)
        board.write("who-does-not-see", blind)
    blind = board.read("who-does-not-see")
    if not blind:
        return {"shared": str(folder)}
    with contextlib.closing(Crossing()) as crossing:
        crossing.connect()
    who = ", ".join(f"process {number} ({hosts[number]})" for number in blind)
    note = (
        f"{who} cannot write to {folder}: the first process writes all of each checkpoint, and its memory must hold the"
        " whole state meanwhile. A --run that all machines see lets each write what it holds"
    )
    return {"notes": (*session["notes"], note)}


def _facts(question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what must be the same in all processes: versions, code, options and recipe; and the host's name."""
    from importlib import metadata

    code = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        code.update(path.read_bytes())
    versions = {name: metadata.version(name) for name in AGREED_ON}
    may_differ = {"quiet", "run", "profiler_port"}
    given = {name: value for name, value in question["options"].items() if name not in may_differ}
    given |= given.pop("pins", {})  # levers, by their own names
    recipe = question["recipe"]
    given |= recipe["fields"]
    options = {f"--{name}".replace("_", "-"): value for name, value in given.items()}
    rest = {name: value for name, value in recipe.items() if name != "fields"}
    if "file" in rest:  # machines may keep it in other folders: its bytes are compared
        rest["file"] = Path(rest["file"]).name
    python = ".".join(map(str, sys.version_info[:3]))
    return {"host": socket.gethostname()} | {
        "python": python, **versions, "the code of plimsoll": code.hexdigest()[:12], **options, **rest
    }  # fmt: skip
