"""Several processes that train one run, in a folder that all of them see: NFS, Lustre, a mounted bucket, one machine.

The first process prepares and plans, in a child, as a process alone does. The others read the same folder, and write
nothing into it but their parts of checkpoints.
"""

from __future__ import annotations

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from plimsoll.api.accelerator import chip_named, pinned_at_most
from plimsoll.errors import (
    DataError,
    PlimsollError,
    RecipeError,
    RunError,
    ended_by_disk,
    ended_by_memory,
    raise_refusal,
)
from plimsoll.files.run_folder import OF_TRAINING, RunFolder
from plimsoll.files.store import is_address
from plimsoll.planner import chips
from plimsoll.processes import environment
from plimsoll.processes.handover import replace_process
from plimsoll.processes.interruption import Interruption
from plimsoll.processes.request import ask
from plimsoll.processes.supervise import end_with
from plimsoll.recipes.base import Prepared, Recipe
from plimsoll.recipes.saved import from_dict, to_dict
from plimsoll.units import whole_number

AGREED_ON = (
    *("jax", "jaxlib", "numpy", "optax", "flax", "orbax-checkpoint"),
    *("grain", "tokenizers", "datasets", "h5py", "pyarrow"),  # each process makes its own rows with these
)
"""Packages whose versions must be the same in all processes."""
MAY_DIFFER = {"quiet", "run", "profiler_port"}
"""Options that need not be the same in all processes."""
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
"""How a file begins by which processes find out whether they see the same folder."""
OF_THE_FIRST = {"quiet": True, "tracker": "none", "profile": 0, "profiler_port": None}
"""Options of the other processes: what is told and traced is the first one's."""
AGAIN = "What was saved is whole: start all processes of the run again, with the same options"


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


def start(recipe: Recipe, options: Any, member: Membership) -> NoReturn:
    """Becomes the process that trains here, together with the others.

    Args:
        recipe: What to train.
        options: `TrainOptions` of the run.
        member: Place of the process among the others.

    Raises:
        RunError: The run is in a bucket.
    """
    if is_address(options.run):
        raise RunError(
            f"--run {options.run} is an address, and several processes need a folder that all of them see: mount the"
            " bucket, or name a shared folder"
        )
    question = {
        **dataclasses.asdict(member),
        "recipe": to_dict(recipe),
        "options": {field.name: getattr(options, field.name) for field in dataclasses.fields(options)},
    }
    target = chips.chip(options.chip or "cpu")
    variables = environment.for_several(target.platform, pinned_bytes=pinned_at_most())
    command = [sys.executable, "-m", "plimsoll.worker", "together", json.dumps(question)]
    replace_process(command, variables, ())


def train_together(question: dict[str, Any]) -> NoReturn:
    """Trains in this process, together with the others, and ends it with its exit code.

    Args:
        question: What `start` has put together.
    """
    import jax

    from plimsoll.training import allocator, distributed

    # Until training begins a signal ends this process at once: nothing is lost, and JAX waits where Python hears none.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _show_python_alone()
    try:
        distributed.join(question["coordinator"], question["processes"], question["process"])
        session = _session(question)
    except PlimsollError as problem:  # all of them raise it
        print(f"error: {problem}", file=sys.stderr)
        distributed.end(problem.exit_code, together=True)

    try:
        code = _train(session)
        distributed.end(code, together=True)
    except PlimsollError as problem:
        code = problem.exit_code
        words = str(problem)
    except (OSError, MemoryError) as problem:
        code = LOST
        ended = ended_by_disk(problem) if isinstance(problem, OSError) else ended_by_memory(problem)
        words = f"{ended}, on all processes of the run"
    except (RuntimeError, ValueError) as problem:
        code = LOST
        said = " ".join(str(problem).split())[:200]
        words = f"another process of this run is gone ({said}). {AGAIN}"
        if allocator.refused(problem):
            words = f"{ended_by_memory(problem)}, on all processes of the run"
        elif not (isinstance(problem, jax.errors.JaxRuntimeError) or "Gloo" in said):
            traceback.print_exc()
            code, words = 1, f"this process ends, and so do the others: {said}"
    print(f"error: {words}", file=sys.stderr)
    distributed.end(code, together=False)


def _show_python_alone() -> None:
    """Keeps Gloo's line for each device, whenever devices first meet, from the standard output."""
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


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

    # All have the same packages, options and code, or say what differs.
    hosts = distributed.require_alike(_facts(question))

    # The first one prepares and plans. All open its folder.
    count = distributed.processes()
    session = distributed.of_first("session", lambda: _prepared({**question, "count": count}))
    raise_refusal(session, prefix="" if distributed.process() == 0 else "the first process says: ")
    folder = RunFolder(session["run"])
    _require_seen(folder, hosts)
    _require_same_data(folder)
    return session


def _train(session: dict[str, Any]) -> int:
    """Trains with the others, and returns the exit code. The first one alone writes log, metrics and ledger."""
    from plimsoll.engine.session import train_here
    from plimsoll.training import distributed

    folder = RunFolder(session["run"])
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
        return problem.reply()


def prepare_here(question: Mapping[str, Any]) -> dict[str, Any]:
    """Prepares and plans the run of several processes, in the child of the first, and returns the session's options."""
    from plimsoll.api import train

    end_with(os.getppid())
    recipe = from_dict(question["recipe"])
    options = train.TrainOptions(**question["options"])
    say = train.printing(quiet=options.quiet)
    ready = train.prepare_run(recipe, options, say, processes=question["count"])
    return json.loads(ready.command[-1])


def _link_prepared(folder: RunFolder, own: Path) -> None:
    """Links what was prepared, and the checkpoints, into a folder where this process writes what nobody reads."""
    for path in folder.path.iterdir():
        if not path.name.startswith(OF_TRAINING):
            (own / path.name).symlink_to(path)
    (own / "checkpoints").symlink_to(folder.checkpoints)


def _require_seen(folder: RunFolder, hosts: list[str]) -> None:
    """Raises RunError, in every process, where one does not see the folder of the run, or may not write there."""
    from plimsoll.training import distributed

    word = distributed.of_first("word", lambda: secrets.token_hex(8))
    mark = folder.checkpoints / f"{SEEN}{word}"
    if distributed.process() == 0:
        mark.mkdir()
    distributed.barrier("marked")
    problem = None
    try:
        (mark / str(distributed.process())).touch(exist_ok=False)
    except OSError as refusal:
        problem = refusal.strerror
    problems = distributed.of_each("seen", problem)
    if distributed.process() == 0:
        shutil.rmtree(mark, ignore_errors=True)
    blind = [f"process {number} ({hosts[number]}: {said})" for number, said in enumerate(problems) if said]
    if blind:
        raise RunError(
            f"{folder.path} is the folder of this run, and {', '.join(blind)} cannot write there: name a --run that all"
            " machines see under the same path, such as NFS or a mounted bucket"
        )


def _require_same_data(folder: RunFolder) -> None:
    """Raises DataError in every process, with those that read other data under the same name, or none."""
    from plimsoll.training import distributed

    recipe = from_dict(folder.read("recipe.json"))
    refusal = None
    try:
        recipe.training_data_changed(Prepared(**folder.read("data.json")))
    except PlimsollError as problem:
        refusal = str(problem)
    each = distributed.of_each("data", refusal)
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
    options = {name: value for name, value in question["options"].items() if name not in MAY_DIFFER}
    options |= options.pop("pins", {})  # levers, by their own names
    recipe = dict(question["recipe"])
    options |= recipe.pop("fields")
    return {
        "host": socket.gethostname(),
        "--processes": question["processes"],
        "python": ".".join(map(str, sys.version_info[:3])),
        **{name: metadata.version(name) for name in AGREED_ON},
        "the code of plimsoll": code.hexdigest()[:12],
        **{f"--{name}".replace("_", "-"): value for name, value in options.items()},
        **recipe,
    }
