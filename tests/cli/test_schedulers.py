"""`train --on slurm` and `--on ray`: what is written and asked for, and what is refused. benchmarks/schedulers.py runs
real ones."""

import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from commands import TINY
from plimsoll.api import jobs, on_ray, slurm
from plimsoll.cli.main import main
from plimsoll.errors import PlimsollError, StoppedError
from plimsoll.planned import HostLedger, Plan
from plimsoll.processes.interruption import Interruption
from plimsoll.types import Levers
from plimsoll.units import GIB, MIB
from report_examples import PLANNED

HOST = HostLedger(budget_bytes=None, components={"process": 2 * GIB}, phase="train")


@pytest.fixture
def planned(monkeypatch):
    """Plans for nothing: the arguments of each, and what it answers."""
    asked = []

    def plan(recipe, options, target, processes, say):
        asked.append((target.name, processes))
        host = None if target.platform == "cpu" else HOST
        return replace(PLANNED, ledger=replace(PLANNED.ledger, budget_bytes=700 * MIB, host=host))

    monkeypatch.setattr(jobs, "_planned", plan)
    return asked


SBATCH = "time=2:00:00 exclusive comment='a b'"


def fake_sbatch(folder, monkeypatch, script):
    path = folder / "bin/sbatch"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


def on_slurm(*words, run):
    return main(["train", "stories", "--dataset-id", "a text.jsonl", *TINY, "--on", "slurm", "--run", str(run), *words])


def saved(run, step):
    folder = Path(run) / f"checkpoints/step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "manifest.json").touch()


def directives(run):
    lines = Path(f"{run}.slurm/job.sh").read_text().splitlines()
    given = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in given)}


def test_the_budget_becomes_the_memory_of_a_node_and_the_script_is_submitted(planned, tmp_path, monkeypatch, capsys):
    fake_sbatch(tmp_path, monkeypatch, 'echo "$@" > "$0.said"; echo "7;here"')
    assert on_slurm("--nodes", "2", "--memory", "4GiB", "--sbatch", SBATCH, run=tmp_path / "run") == 0
    asked = directives(tmp_path / "run")
    assert planned == [("cpu", 2)]
    assert (asked["nodes"], asked["ntasks-per-node"], asked["signal"]) == ("2", "1", "TERM@120")
    assert (asked["time"], asked["requeue"], asked["open-mode"]) == (
        "2:00:00 --exclusive '--comment=a b'",
        "",
        "append",
    )
    assert "gpus-per-node" not in asked
    script = tmp_path / "run.slurm/job.sh"
    assert (tmp_path / "bin/sbatch.said").read_text() == f"--parsable {script}\n"
    said = capsys.readouterr().out
    assert f"{script} asks for --nodes 2, of each 4.0 GiB of memory, and --ntasks-per-node 1" in said
    assert f"submitted as job 7. Its output: {script.parent}/7.out" in said


def test_a_node_is_asked_for_its_budgets_or_what_planning_takes():
    job = {"name": "x", "run": "x", "command": [], "nodes": 1, "gpus_per_node": 0}
    few, many = (slurm.node_bytes(jobs.Job(**job, tasks_per_node=count, process_bytes=4 * GIB)) for count in (1, 8))
    assert few == 4 * GIB
    assert many == 8 * few
    assert slurm.node_bytes(jobs.Job(**job, tasks_per_node=1, process_bytes=MIB)) == 3 * GIB + slurm.STARTING_BYTES


def test_sixteen_gpus_are_two_nodes_with_a_task_for_each_gpu(planned, tmp_path, capsys):
    assert on_slurm("--chip", "h100x16", "--no-submit", run=tmp_path / "run") == 0
    asked = directives(tmp_path / "run")
    assert planned == [("h100x16", 16)]
    assert (asked["nodes"], asked["ntasks-per-node"], asked["gpus-per-node"]) == ("2", "8", "8")
    assert asked["mem"] == f"{8 * 2 * 1024}M"
    said = capsys.readouterr().out
    assert "16.0 GiB of memory, 8 of its GPUs, and --ntasks-per-node 8" in said
    assert f"nothing was submitted: look at the script, and submit it with `sbatch {tmp_path}/run.slurm/job.sh`" in said


def test_the_script_starts_what_was_typed_without_what_is_for_the_scheduler(planned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert on_slurm("--memory", "1GiB", "--no-submit", "--nodes=2", "--sbatch=time=1", run="my run") == 0
    script = Path("my run.slurm/job.sh").read_text()
    (line,) = [line for line in script.splitlines() if line.startswith("srun ")]
    typed = f"train stories --dataset-id 'a text.jsonl' {' '.join(TINY)} --run 'my run' --memory 1GiB"
    typed = f"{typed} --chip cpu --run 'my run'"
    assert line == f"srun --kill-on-bad-exit=0 {sys.executable} -m plimsoll.cli.main {typed}"
    assert subprocess.run(["bash", "-n", "my run.slurm/job.sh"], check=False).returncode == 0


@pytest.mark.parametrize(("code", "saves", "requeued"), [(143, True, True), (143, False, False), (3, True, False)])
def test_the_job_is_requeued_only_where_it_was_stopped_and_has_saved_a_step_further(
    planned, tmp_path, code, saves, requeued
):
    run = tmp_path / "run"
    assert on_slurm("--memory", "1GiB", "--no-submit", run=run) == 0
    (tmp_path / "bin").mkdir()
    saved(run, 4)
    being_written = run / "checkpoints/step-00000010"
    being_written.mkdir()
    more = f"touch {being_written}/manifest.json" if saves else "true"
    for name, script in {"srun": f"{more}; exit {code}", "scontrol": f'echo "$@" > {tmp_path}/said'}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    variables = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    assert subprocess.run(["bash", f"{run}.slurm/job.sh"], env=variables, check=False).returncode == code
    assert (tmp_path / "said").exists() == requeued
    if requeued:
        assert (tmp_path / "said").read_text() == "requeue 7\n"


def test_what_slurm_refuses_is_said_with_the_script_that_stays(planned, tmp_path, monkeypatch, capsys):
    fake_sbatch(tmp_path, monkeypatch, 'echo "sbatch: error: invalid partition specified: gpu" >&2; exit 1')
    assert on_slurm("--memory", "1GiB", run=tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert f"--on slurm wrote {tmp_path}/run.slurm/job.sh, and sbatch refused it: invalid partition specified" in said
    assert "with --sbatch, like" in said


def test_a_run_that_has_a_plan_is_asked_for_its_chip_and_its_budget(tmp_path, monkeypatch):
    plan = Plan(
        chip="h100x8",
        accumulation=1,
        devices=8,
        levers=Levers(micro_batch=8, remat="none", loss_chunk=0, precision="mixed", prefetch=0, async_save=False),
    )
    host = HostLedger(budget_bytes=None, components={"process": 5 * GIB}, phase="train")
    planned = replace(PLANNED, plan=plan, ledger=replace(PLANNED.ledger, budget_bytes=9 * GIB, host=host))
    monkeypatch.setattr(jobs.RunFolder, "planned", lambda _: planned)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/plan.json").touch()
    assert on_slurm("--no-submit", run=tmp_path / "run") == 0
    asked = directives(tmp_path / "run")
    assert (asked["nodes"], asked["gpus-per-node"], asked["mem"]) == ("1", "8", f"{8 * 5 * 1024}M")


def test_ray_that_is_not_installed_is_named(planned, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["train", "stories", "--dataset-id", "x.jsonl", *TINY, "--on", "ray", "--memory", "1GiB"]
    assert main([*words, "--run", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "--on ray starts processes through the package ray, which cannot be imported here" in said
    assert not planned


def of_ray(codes, monkeypatch, tmp_path, saves):
    """Returns what `_until_done` makes of processes that end so, again and again, and what was said."""
    said, rounds = [], iter(codes)

    def once(*_):
        if step := next(saves):
            saved(tmp_path, step)
        return next(rounds)

    monkeypatch.setattr(on_ray, "_once", once)
    job = types.SimpleNamespace(run=str(tmp_path), processes=2)
    return on_ray._until_done(None, job, said.append, Interruption()), said


RESTARTED = {
    "one is lost": (
        [[3, 137], [137, 3], [0, 0]],
        [4, 8, 12],
        0,
        ["1 of 2 processes on Ray (number 1) lost|step 4", "(number 0) lost|step 8"],
    ),
    "the network is cut": ([[134, 134], [0, 0]], [4, 8], 0, ["2 of 2 processes on Ray (number 0, 1) lost|step 4"]),
    "the run stops itself": ([[3, 3]], [4], 3, []),
    "one has its own reason": ([[3, 2]], [4], 3, []),
    "another has its own reason": ([[134, 2]], [4], 2, []),
    "an error": ([[1, 134]], [4], 1, []),
}
"""Exit codes of both processes in each round, the steps saved meanwhile, the code of all, and what is told."""


@pytest.mark.parametrize("case", RESTARTED)
def test_on_ray_lost_processes_start_again_and_others_end_all(case, monkeypatch, tmp_path):
    codes, steps, expected, lines = RESTARTED[case]
    code, said = of_ray(codes, monkeypatch, tmp_path, iter(steps))
    assert code == expected
    assert len(said) == len(lines)
    for line, parts in zip(said, lines, strict=True):
        assert all(part in line for part in parts.split("|"))


@pytest.mark.parametrize(("codes", "steps"), [([3, 137], [0, 4, 0, 0]), ([134, 134], [0, 0])])
def test_on_ray_processes_that_are_lost_in_vain_are_started_again_once(codes, steps, monkeypatch, tmp_path):
    with pytest.raises(StoppedError, match="2 times in a row"):
        of_ray([codes] * 5, monkeypatch, tmp_path, iter(steps))


class RayError(Exception):
    pass


class RayTaskError(RayError):
    cause = FileNotFoundError(2, "No such file or directory", "/work")


class Ray:
    """A cluster whose actors do not start: `get` raises this."""

    exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, problem):
        self.problem, self.killed = problem, 0
        strategy = types.SimpleNamespace(PlacementGroupSchedulingStrategy=lambda *_, **__: None)
        self.util = types.SimpleNamespace(scheduling_strategies=strategy, remove_placement_group=lambda _: None)
        actor = types.SimpleNamespace(address=types.SimpleNamespace(remote=lambda: None))
        made = types.SimpleNamespace(remote=lambda: actor)
        self.remote = lambda **_: lambda _: types.SimpleNamespace(options=lambda **_: made)

    def get(self, _, timeout):
        raise self.problem

    def kill(self, _):
        self.killed += 1


def test_on_ray_a_node_that_is_lost_before_its_process_starts_is_a_lost_process(monkeypatch, tmp_path):
    monkeypatch.setattr(on_ray, "_placed", lambda *_: None)
    job = types.SimpleNamespace(run=str(tmp_path), processes=2, command=[], gpus_per_node=0, tasks_per_node=1)
    ray, said = Ray(RayError("The actor died\nunexpectedly")), []
    with pytest.raises(StoppedError, match=r"Ray \(number 0, 1\) ended with 137, 137, and 2 times in a row"):
        on_ray._until_done(ray, job, said.append, Interruption())
    assert said == [
        f"the processes of {tmp_path} could not be started on Ray (RayError: The actor died unexpectedly)",
        "2 of 2 processes on Ray (number 0, 1) lost: all start again from step 0",
        f"the processes of {tmp_path} could not be started on Ray (RayError: The actor died unexpectedly)",
    ]
    assert ray.killed == 4
    with pytest.raises(PlimsollError, match=r"No such file or directory: '/work'\): every node needs that folder"):
        on_ray._until_done(Ray(RayTaskError()), job, said.append, Interruption())


def test_a_cluster_that_does_not_answer_is_named(monkeypatch):
    def init(**_):
        raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(init=init))
    with pytest.raises(PlimsollError, match=r"finds no Ray cluster .ConnectionError: Could not find any running"):
        on_ray.train_on_ray(None, print)
