"""Trains one run in several processes that share its folder: on NFS, Lustre, a mounted bucket, or one machine.

The first process prepares the data and finds the plan, in a child process. The other processes read the same folder,
and write only their parts of checkpoints.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
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

from plimsoll.api.planning.card import pinned_at_most
from plimsoll.api.planning.place import chip_named
from plimsoll.errors import (
    DataError,
    PlimsollError,
    RecipeError,
    RunError,
    ended_by_disk,
    ended_by_memory,
    raise_refusal,
)
from plimsoll.files.bucket import is_address
from plimsoll.files.provenance import PACKAGES, installed_version
from plimsoll.files.run_folder import OF_TRAINING, RunFolder
from plimsoll.planner import chips
from plimsoll.planner.child import code_digest
from plimsoll.processes import environment
from plimsoll.processes.handover import Ready, become
from plimsoll.processes.interruption import Interruption
from plimsoll.processes.request import ask
from plimsoll.processes.supervise import end_with
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import from_dict, to_dict
from plimsoll.units import whole_number

MAY_DIFFER = {"quiet", "run", "profiler_port"}
"""Options that may differ between the processes."""
LAST_PORT = 65_535
LOST = 3
"""Exit code of a process if another process of the run is gone."""
SEEN = ".seen-"
"""Name prefix of a temporary folder that shows whether all processes can write to the run's folder."""
OF_THE_FIRST = {"quiet": True, "tracker": "none", "profile": 0, "profiler_port": None}
"""Option values of all processes but the first. Only the first prints, profiles, and uses an experiment tracker."""


@dataclass(frozen=True)
class Membership:
    """Position of this process among a run's processes. If a field is None, JAX reads it from environment variables."""

    coordinator: str | None = None
    """HOST:PORT of the first process."""
    processes: int | None = None
    process: int | None = None
    """Index of this process, from 0."""


def membership(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    *,
    chip: str | None = None,
    variables: Mapping[str, str] = os.environ,
) -> Membership | None:
    """Returns the position of this process among a run's processes; None if the process trains alone.

    If the first three arguments are None, the process is one of several if the environment variables of a cluster are
    set, or if the chip has several hosts.

    Args:
        coordinator: HOST:PORT of the first process.
        processes: Number of processes.
        process: Index of this process, from 0.
        chip: Name of the chip to train on.
        variables: Environment variables of this process.

    Raises:
        RecipeError: Only some of the first three arguments are given, or one is not valid.
    """
    typed = (coordinator, processes, process)
    if typed == (None, None, None):
        target = chip_named(chip or "cpu")
        several_hosts = target.platform == "tpu" and target.hosts > 1
        return Membership() if several_hosts or _in_cluster(variables) else None
    if coordinator is None or processes is None or process is None or not 0 <= process < processes:
        raise RecipeError(
            f"--coordinator HOST:PORT, --processes N and --process I go together, and are {typed}: give the address and"
            " a free port of the first machine, the number of processes, and the number of this process, from 0"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not 0 < (whole_number(port) or 0) <= LAST_PORT:
        raise RecipeError(
            f"--coordinator {coordinator[:80]} is not HOST:PORT, like 10.0.0.1:9911, with a port of at most"
            f" {LAST_PORT:,}"
        )
    return Membership(coordinator, processes, process) if processes > 1 else None


def _in_cluster(variables: Mapping[str, str]) -> bool:
    """Returns True if Slurm's `srun`, Open MPI's `mpirun` or Kubernetes on TPUs has started more than one process."""
    counts = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
    slurm = {"SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID"} <= variables.keys()
    several = [(whole_number(variables.get(name, "")) or 0) > 1 for name in counts]
    started = slurm or "OMPI_MCA_orte_hnp_uri" in variables
    return (started and any(several)) or "," in variables.get("TPU_WORKER_HOSTNAMES", "")


def require_shared_folder(run: str | None) -> None:
    """Raises RunError if `run` is the address of a bucket instead of a folder."""
    if is_address(run):
        raise RunError(
            f"--run {run} is an address, and several processes need a folder that all of them see: mount the bucket, or"
            " name a shared folder"
        )


def start(recipe: Recipe, options: Any, member: Membership) -> NoReturn:
    """Replaces this process (exec) with a process that trains together with the run's other processes.

    Args:
        recipe: Recipe to train.
        options: `TrainOptions` of the run.
        member: Position of the process among the run's processes.

    Raises:
        RecipeError: An option requests evaluations or checkpoints at time intervals.
        RunError: The run is in a bucket.
    """
    require_shared_folder(options.run)
    options.refuse_clock(member.processes or 1)
    question: dict[str, Any] = {
        **dataclasses.asdict(member),
        "recipe": to_dict(recipe),
        "options": vars(options),
    }
    target = chips.chip(options.chip or "cpu")
    command = [sys.executable, "-m", "plimsoll.worker", "together", json.dumps(question)]
    become(Ready(command, environment.for_several(target.platform, pinned_bytes=pinned_at_most())))


def train_together(question: dict[str, Any]) -> NoReturn:
    """Trains together with the other processes, and ends this process with its exit code.

    Args:
        question: Dict from `start`: the fields of `Membership`, and the recipe and options as JSON.
    """
    from plimsoll.training import allocator, distributed

    # Until training begins, let Ctrl-C end this process at once: no work is lost. A Python handler would have to wait
    # until JAX returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _show_python_alone()
    all_refuse = True
    try:
        distributed.join(question["coordinator"], question["processes"], question["process"])
        session = _session(question)
        all_refuse = False
        code = _train(session)
        distributed.end(code, together=True)

    # Handle every exception here: Python's own exit would wait for the other processes, which wait for this one.
    except PlimsollError as problem:
        print(f"error: {problem}", file=sys.stderr)
        distributed.end(problem.exit_code, together=all_refuse)
    except Exception as problem:
        code = LOST
        reason = " ".join(str(problem).split())[:200]
        if isinstance(problem, OSError):
            words = f"{ended_by_disk(problem)}, on all processes of the run"
        elif allocator.refused(problem):
            words = f"{ended_by_memory(problem)}, on all processes of the run"
        elif distributed.is_of_others(problem):
            words = (
                f"another process of this run is gone ({reason}). The run is intact: start all its processes"
                " again, with the same options"
            )
        else:
            traceback.print_exc()
            code = 1
            words = f"this process and the others end: {reason}"
    print(f"error: {words}", file=sys.stderr)
    distributed.end(code, together=False)


def _show_python_alone() -> None:
    """Hides the lines that Gloo, JAX's communication library on CPUs, prints to standard output."""
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _session(question: Mapping[str, Any]) -> dict[str, Any]:
    """Prepares the run with the other processes. Returns the options of training.

    If one process fails, every process raises the error.
    """
    from plimsoll.training import distributed

    # Require the same packages, options and code in all processes.
    hosts = distributed.require_alike(_facts(question))

    # Let the first process prepare the data and find the plan. Then all processes open the run's folder.
    count = distributed.processes()
    session = distributed.of_first("session", lambda: _prepared({**question, "count": count}))
    raise_refusal(session, prefix="" if distributed.process() == 0 else "the first process says: ")
    folder = RunFolder(session["run"])
    _require_seen(folder, hosts)
    _require_same_data(folder, hosts)
    return session


def _train(session: dict[str, Any]) -> int:
    """Trains with the other processes. Returns the exit code. Only the first writes log, metrics and memory ledger."""
    from plimsoll.engine.session import train_here
    from plimsoll.training import distributed

    folder = RunFolder(session["run"])
    with tempfile.TemporaryDirectory(prefix="plimsoll-process-", ignore_cleanup_errors=True) as own:
        if distributed.process() == 0:
            session = session | {"lock": folder.lock()}
        else:
            # The other processes write log and metrics into a temporary folder with links to the data and checkpoints.
            for path in folder.path.iterdir():
                if path == folder.checkpoints or not path.name.startswith(OF_TRAINING):
                    Path(own, path.name).symlink_to(path)
            session = session | OF_THE_FIRST | {"run": own, "lock": None}
        with Interruption() as interruption:
            return train_here(session, interruption).code


def _prepared(question: Mapping[str, Any]) -> dict[str, Any]:
    """Prepares data and plan in a child process, to save memory here. Returns the options of training, or the error."""
    try:
        return ask("prepare_run", question, under=os.environ)
    except PlimsollError as problem:
        return problem.reply()


def prepare_here(question: Mapping[str, Any]) -> dict[str, Any]:
    """Prepares the data and finds the plan, in the child of the first process. Returns the options of training."""
    from plimsoll.api import train

    end_with(os.getppid())
    recipe = from_dict(question["recipe"])
    options = train.TrainOptions(**question["options"])
    say = train.printing(quiet=options.quiet)
    ready = train.prepare_run(recipe, options, say, processes=question["count"])
    return json.loads(ready.command[-1])


def _require_seen(folder: RunFolder, hosts: list[str]) -> None:
    """Raises RunError in every process if any of them does not see the run's folder, or cannot write there."""
    from plimsoll.training import distributed

    # Let the first process make a folder, and each process put a file into it.
    def make_mark() -> str:
        mark = folder.checkpoints / f"{SEEN}{secrets.token_hex(8)}"
        mark.mkdir()
        return mark.name

    mark = folder.checkpoints / distributed.of_first("mark", make_mark)
    problem = None
    try:
        (mark / str(distributed.process())).touch()
    except OSError as refusal:
        problem = refusal.strerror
    complaints = _complaints("seen", problem, hosts)
    if distributed.process() == 0:
        shutil.rmtree(mark, ignore_errors=True)
    if complaints:
        raise RunError(
            f"{folder.path} is the folder of this run, and not all processes can write there. {complaints}. Name a"
            " --run that all machines see under the same path, such as NFS or a mounted bucket"
        )


def _require_same_data(folder: RunFolder, hosts: list[str]) -> None:
    """Raises DataError in every process if any of them finds other data than the run's, or none, at the same path."""
    recipe = from_dict(folder.read("recipe.json"))
    refusal = None
    try:
        recipe.open(folder.path).require_same(Prepared.read(folder), training=True)
    except PlimsollError as problem:
        refusal = str(problem)
    if complaints := _complaints("data", refusal, hosts):
        raise DataError(f"the processes of this run do not read the same data. {complaints}")


def _complaints(topic: str, problem: str | None, hosts: list[str]) -> str:
    """Returns the `problem` of each process as one text, equal in every process; empty if no process has a problem."""
    from plimsoll.training import distributed

    problems = distributed.of_each(topic, problem)
    return "; ".join(
        f"process {number} ({hosts[number]}) says: {problem}" for number, problem in enumerate(problems) if problem
    )


def _facts(question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns facts that must be equal in all processes: versions, code, options, recipe. Adds the host's name."""
    options = {name: value for name, value in question["options"].items() if name not in MAY_DIFFER}
    options |= options.pop("pins", {})  # levers, by their own names
    recipe = dict(question["recipe"])
    options |= recipe.pop("fields")
    return {
        "host": socket.gethostname(),
        "--processes": question["processes"],
        "python": platform.python_version(),
        **{name: installed_version(name) for name in PACKAGES},
        "the code of plimsoll": code_digest()[:12],
        **{f"--{name}".replace("_", "-"): value for name, value in options.items()},
        **recipe,
    }
