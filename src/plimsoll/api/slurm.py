"""A training job for Slurm: `plimsoll train ... --on slurm` writes its script from a plan and submits it.

The script stays beside the run, and can be read, changed and submitted by hand. It starts the same command on every
node. The processes find one another by Slurm's variables (`api/cluster.py`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from plimsoll.api.jobs import Job
from plimsoll.api.messages import Say
from plimsoll.errors import PlimsollError, RecipeError
from plimsoll.planner.host import COMPILER_BYTES
from plimsoll.units import MIB, format_bytes

NOTICE_SECONDS = 120
"""Seconds before the time limit at which Slurm sends SIGTERM. Slurm may send it up to 60 seconds earlier."""
STARTING_BYTES = 512 * MIB
"""Bytes of memory of a process that has started JAX and waits for the plan."""
NAME = "job.sh"

SCRIPT = """#!/bin/bash
# Written by `plimsoll train --on slurm`. It can be changed, and submitted with sbatch.
{directives}

# Since Slurm 22.05, srun does not take the CPUs per task from sbatch.
if [ -n "$SLURM_CPUS_PER_TASK" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
newest() {{ ls -d {checkpoints}/step-*/manifest.json 2>/dev/null | tail -n 1; }}
before=$(newest)
srun --kill-on-bad-exit=0 {command}
code=$?
# 143: SIGTERM came, for example before the time limit, and the run is saved. Requeue the job only if a new step is
# saved, so that it is not requeued forever. After a lost node, Slurm requeues the job itself.
if [ $code -eq 143 ] && [ "$(newest)" != "$before" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
"""


def require_sbatch() -> None:
    """Raises PlimsollError if Slurm's `sbatch` is not on the PATH. Call it before planning, which takes a minute."""
    if shutil.which("sbatch") is None:
        raise PlimsollError(
            "--on slurm submits a job with sbatch, and there is no sbatch on this machine's PATH: run the command where"
            " Slurm's commands are, like on a login node, or add --no-submit, which only writes the script"
        )


def node_bytes(job: Job) -> int:
    """Returns the memory in bytes that the job requests on each node.

    It is the larger of two needs: the memory of training, and the memory of planning, when one process runs a compiler
    while the others wait.
    """
    training = job.tasks_per_node * job.process_bytes
    return max(training, COMPILER_BYTES + job.tasks_per_node * STARTING_BYTES)


def options_of_sbatch(text: str) -> str:
    """Converts text like `time=12:00:00 exclusive` to options of `sbatch`. Only `sbatch` checks their names.

    Raises:
        RecipeError: A quotation mark is not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as problem:
        raise RecipeError(f"--sbatch {text[:80]!r} cannot be read ({problem}): close the quotation mark") from None
    return shlex.join(f"--{word}" for word in words)


def write_script(job: Job, further: str, say: Say) -> Path:
    """Writes the job's script into the folder RUN.slurm, where the job's output goes, too. Returns the script's path.

    Args:
        job: The job.
        further: Further options of sbatch, which override the job's own.
        say: Called with a description of the requested resources.
    """
    folder = Path(f"{job.run}.slurm").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    asked = node_bytes(job)
    options = {
        "job-name": job.name,
        "chdir": os.getcwd(),
        "output": f"{str(folder).replace('%', '%%')}/%j.out",
        "open-mode": "append",
        "nodes": str(job.nodes),
        "ntasks-per-node": str(job.tasks_per_node),
        "mem": f"{-(-asked // MIB)}M",
        "signal": f"TERM@{NOTICE_SECONDS}",
    }
    gpus = ""
    if job.gpus_per_node:
        options["gpus-per-node"] = str(job.gpus_per_node)
        gpus = f", {job.gpus_per_node} of its GPUs"
    lines = [f"--{name}={shlex.quote(value)}" for name, value in options.items()]
    text = SCRIPT.format(
        directives="\n".join(f"#SBATCH {line}" for line in [*lines, "--requeue", further]),
        checkpoints=shlex.quote(str(Path(job.run).absolute() / "checkpoints")),
        command=shlex.join([sys.executable, "-m", "plimsoll.cli.main", *job.command]),
    )
    path = folder / NAME
    path.write_text(text)
    path.chmod(0o755)
    say(
        f"{path} asks for --nodes {job.nodes}, of each {format_bytes(asked)} of memory{gpus}, and"
        f" --ntasks-per-node {job.tasks_per_node}"
    )
    return path


def submit(path: Path, say: Say) -> None:
    """Submits a script. Prints the job's number, the file of its output, and the command that stops it.

    Raises:
        PlimsollError: Slurm rejects the job, or its controller does not answer in time.
    """
    command = ["sbatch", "--parsable", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.replace("sbatch: error: ", "").split())[:400]
        raise PlimsollError(
            f"--on slurm wrote {path}, and sbatch refused it: {said}. Give the options that this cluster wants with"
            ' --sbatch, like --sbatch "partition=gpu account=me time=12:00:00", or change the script and submit'
            f" it with `sbatch {path}`"
        )
    number = done.stdout.strip().partition(";")[0]
    say(
        f"submitted as job {number}. Its output: {path.parent / number}.out. `squeue -j {number}` shows it,"
        f" `scancel {number}` saves and ends it; the same command again continues the run"
    )
