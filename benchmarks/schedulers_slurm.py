"""Slurm's part of schedulers.py: a cluster of three nodes on this machine, and a job that is stopped, hurt, continued.

Each node is a network, process and host name namespace of its own with a `slurmd` in it, joined by a bridge, so that
what Debian's packages were built for is what runs: a daemon on each machine. A node is lost when its link goes down and
all its processes are killed. Needs root; everything is in namespaces that end with this program.

`side` is the inside, in namespaces of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from peers.environment import SIDE_PROGRAM
from schedulers import World, said, saved, says_that_one_is_gone, step_of, wait_until
from training_process import ENVIRONMENT, PLIMSOLL

NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "unshare")
NODES = (1, 2, 3)
SPACES = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child", "--"]
CONFIGURATION = """
ClusterName=here
SlurmctldHost=head
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
SchedulerParameters=bf_interval=5,sched_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
SlurmdTimeout=30
ReturnToService=2
GresTypes=gpu
NodeName=node[1-3] CPUs=8 RealMemory=8000 Gres=gpu:8
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""
NODE = """
hostname node{number}
mount --make-rprivate /
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.1; done
ip addr add 10.99.0.1{number}/24 dev eth0
ip link set eth0 up
exec slurmd -D -N node{number} -f {folder}/slurm.conf
"""


def missing() -> str:
    """Returns why this part cannot run; empty if it can."""
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} here (Debian: apt-get install slurm-wlm munge iproute2)"
    return "" if os.geteuid() == 0 else "its nodes are namespaces, which only root can make here"


def version() -> str:
    return said(["slurmctld", "-V"])


def run(world: World) -> str:
    """Runs the inside of this part in namespaces of its own, and returns the fingerprint."""
    steps = world.words[world.words.index("--steps") + 1]
    done = subprocess.run(
        [*SPACES, sys.executable, SIDE_PROGRAM, "schedulers_slurm", str(world.folder), steps], check=False
    )
    answer = world.folder / "slurm.json"
    if done.returncode or not answer.exists():
        raise SystemExit("the part of Slurm has failed")
    found = json.loads(answer.read_text())
    world.checks += found["checks"]
    return found["fingerprint"]


class Cluster:
    """A controller and three nodes."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.folder = folder
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        (folder / "hosts").write_text(
            "".join(f"10.99.0.{at} {name}\n" for at, name in ((1, "head"), (11, "node1"), (12, "node2"), (13, "node3")))
            + "127.0.0.1 localhost\n"
        )
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder))
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-7]\n")
        for number in range(8):  # Slurm hands out GPUs by their device files, and looks into none
            os.mknod(folder / f"gpu{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        os.environ["SLURM_CONF"] = ENVIRONMENT["SLURM_CONF"] = str(folder / "slurm.conf")
        files = [
            f"--{name}={folder}/munge.{name.removesuffix('-file')}"
            for name in ("key-file", "pid-file", "log-file", "seed-file")
        ]
        for words in (
            "mount --make-rprivate /", f"mount --bind {folder}/hosts /etc/hosts", "ip link set lo up",
            "ip link add br0 type bridge", "ip addr add 10.99.0.1/24 dev br0", "ip link set br0 up", "hostname head",
            f"munged --force --socket={folder}/munge.socket {' '.join(files)}", "slurmctld",
        ):  # fmt: skip
            subprocess.run(words.split(), check=True, stderr=subprocess.DEVNULL)
        for number in NODES:
            self.start_node(number)
        wait_until(lambda: slurm("sinfo -h -o %t-%D").strip() == "idle-3", "all nodes are idle", seconds=60)

    def start_node(self, number: int) -> None:
        script = NODE.format(number=number, folder=self.folder)
        node = subprocess.Popen([*SPACES, "bash", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        child = wait_until(
            lambda: Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().strip(), "the node is there"
        )
        subprocess.run(f"ip link del v{number}".split(), check=False, stderr=subprocess.DEVNULL)  # of a lost one
        for words in (
            f"ip link add v{number} type veth peer name eth0 netns {child}",
            f"ip link set v{number} master br0 up",
        ):
            subprocess.run(words.split(), check=True)
        self.nodes[number] = node

    def cut(self, number: int) -> None:
        """Takes the power from a node: nobody hears from it again."""
        subprocess.run(f"ip link set v{number} down".split(), check=True)
        self.nodes[number].kill()

    def trains_on(self, number: int) -> list[int]:
        """Returns the processes that train on a node."""
        child = Path(f"/proc/{self.nodes[number].pid}/task/{self.nodes[number].pid}/children").read_text().strip()
        space = os.readlink(f"/proc/{child}/ns/pid")
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    os.readlink(path / "ns/pid") == space
                    and b"plimsoll.worker\0together" in (path / "cmdline").read_bytes()
                ):
                    found.append(int(path.name))
            except OSError:
                continue
        return found


def slurm(words: str) -> str:
    return subprocess.run(words.split(), capture_output=True, text=True, check=False).stdout


def job(number: str) -> dict[str, str]:
    """Returns what Slurm says of a job."""
    return dict(re.findall(r"(\w+)=(\S+)", slurm(f"scontrol show job {number}")))


class Jobs:
    """Jobs of one run, submitted as a user does."""

    def __init__(self, world: World) -> None:
        self.world, self.run, self.text = world, world.folder / "slurm", ""
        self.most = 0

    def submit(self, sbatch: str) -> str:
        """Returns the number of a job that trains, or goes on."""
        words = [*self.world.words, "--run", str(self.run), "--on", "slurm", "--nodes", "2", "--sbatch", sbatch]
        done = subprocess.run([*PLIMSOLL, *words], env=ENVIRONMENT, capture_output=True, text=True, check=False)
        found = re.search(r"submitted as job (\d+)", done.stdout)
        if found is None:
            raise SystemExit(f"nothing was submitted: {done.stdout[-500:]} {done.stderr[-500:]}")
        return found[1]

    def output(self, number: str) -> str:
        path = Path(f"{self.run}.slurm") / f"{number}.out"
        return path.read_text() if path.exists() else ""

    def until(self, number: str, what: str, **expected: str) -> dict[str, str]:
        """Waits until Slurm says so of the job, and returns all that it says."""

        def seen() -> dict[str, str] | None:
            says = job(number)
            return says if all(says.get(name) == value for name, value in expected.items()) else None

        return wait_until(seen, what)

    def at(self, number: str) -> int:
        """Returns the step that the job's present session has said; 0 before its first."""
        session = self.output(number).rpartition("continuing from step")[2]
        return max((int(step) for step in re.findall(r"^step +(\d+)/", session, re.MULTILINE)), default=0)

    def until_steps(self, number: str, more: int) -> None:
        """Waits until the job has taken some steps that are not saved."""

        def there() -> bool:
            step = self.at(number)
            if job(number).get("JobState") in ("FAILED", "CANCELLED", "COMPLETED", "NODE_FAIL"):
                raise SystemExit(f"job {number} ended at step {step}: {self.output(number)[-3000:]}")
            return step >= max(saved(self.run), default=0) + more

        wait_until(there, f"{more} steps that are not saved")


def at_the_time_limit(world: World, jobs: Jobs) -> str:
    """Checks that a job which is out of time saves, goes back into the queue, and continues."""
    number = jobs.submit("time=3 signal=TERM@60")
    says = jobs.until(number, "the job runs", JobState="RUNNING")
    nodes = says["NodeList"]
    world.check(
        "sbatch takes the script: two tasks, a node each",
        nodes == "node[1-2]" and says["NumTasks"] == "2",
        nodes=nodes,
        memory=says["MinMemoryNode"],
    )
    jobs.until(number, "the time is nearly over, and the job is requeued", Restarts="1")
    out, at = jobs.output(number), saved(jobs.run)[-1]
    good = "Training stopped early" in out and out.count("Exited with exit code 143") == 2
    world.check(
        "SIGTERM before the time limit: both save together, and the job is requeued",
        good,
        saved=at,
        logged=step_of(jobs.run),
    )
    slurm(f"scontrol update jobid={number} timelimit=60")
    wait_until(lambda: f"continuing from step {at:,} of" in jobs.output(number), "it continues")
    world.check("the requeued job continues from there", True, step=at)
    return number


def with_a_lost_node(world: World, cluster: Cluster, jobs: Jobs, number: str) -> None:
    """Checks that a job which loses a node says so, and continues on another one."""
    jobs.until_steps(number, 40)
    began, at = time.monotonic(), saved(jobs.run)[-1]
    cluster.cut(2)
    wait_until(
        lambda: says_that_one_is_gone(jobs.output(number)), "the other process says that one is gone", seconds=120
    )
    seconds = time.monotonic() - began
    world.check("a node is lost: the process on the other says so", seconds < 60, seconds=round(seconds, 1))
    says = jobs.until(number, "Slurm requeues the job on other nodes", Restarts="2", JobState="RUNNING")
    wait_until(lambda: jobs.output(number).count("continuing from step") == 2, "it continues")
    world.check(
        "Slurm requeues it by itself on other nodes, and it continues",
        says["NodeList"] == "node[1,3]",
        nodes=says["NodeList"],
        saved=at,
        seconds=round(time.monotonic() - began, 1),
    )


def with_a_killed_process(world: World, cluster: Cluster, jobs: Jobs, number: str) -> str:
    """Checks that a job ends where one of its processes is killed, and that the same command goes on."""
    jobs.until_steps(number, 40)
    os.kill(cluster.trains_on(3)[0], signal.SIGKILL)
    says = jobs.until(number, "the job ends", JobState="FAILED")
    told = says_that_one_is_gone(jobs.output(number).rpartition("continuing from step")[2])
    world.check("a process is killed: the other says so, and the job ends", told, exit_code=says["ExitCode"])
    cluster.start_node(2)
    return jobs.submit("time=30")


def with_scancel(world: World, jobs: Jobs, number: str) -> str:
    """Checks that a job which the user ends saves, and is not requeued."""
    jobs.until_steps(number, 40)
    slurm(f"scancel {number}")
    jobs.until(number, "the job has ended", JobState="CANCELLED")
    wait_until(lambda: not slurm("squeue -h").strip(), "the queue is empty")
    at = saved(jobs.run)[-1]
    world.check("scancel saves and ends it", at >= step_of(jobs.run), saved=at, logged=step_of(jobs.run))
    return jobs.submit("time=30")


def accepts_gpus(world: World) -> None:
    """Checks that Slurm accepts the script of a job on 16 GPUs: its nodes here are only called so."""
    words = ["train", "stories", *world.words[2:], "--run", str(world.folder / "gpus")]
    words += ["--chip", "h100x16", "--on", "slurm"]
    at = words.index("--memory")
    del words[at : at + 2]
    words[words.index("--micro-batch") + 1] = "16"  # an example for each
    done = subprocess.run(
        [*PLIMSOLL, *words, "--no-submit"], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    script = Path(f"{world.folder / 'gpus'}.slurm/job.sh")
    tested = subprocess.run(["sbatch", "--test-only", str(script)], capture_output=True, text=True, check=False)
    answer = tested.stderr.strip().splitlines()[-1]
    lines = [
        line.removeprefix("#SBATCH ")
        for line in script.read_text().splitlines()
        if "per-node" in line or "--mem" in line
    ]
    world.check(
        "sbatch --test-only takes a script for 16 GPUs",
        done.returncode == 0 and tested.returncode == 0,
        says=answer,
        asks=" ".join(lines),
    )


def side() -> None:
    world = World(Path(sys.argv[1]), int(sys.argv[2]))
    cluster, jobs = Cluster(world.folder / "cluster"), Jobs(world)
    accepts_gpus(world)
    number = at_the_time_limit(world, jobs)
    with_a_lost_node(world, cluster, jobs, number)
    number = with_a_killed_process(world, cluster, jobs, number)
    number = with_scancel(world, jobs, number)
    jobs.until(number, "the job is done", JobState="COMPLETED")
    world.check("the same command continues to the end", step_of(jobs.run) == int(sys.argv[2]), steps=step_of(jobs.run))
    answer: dict[str, Any] = {"checks": world.checks, "fingerprint": world.fingerprint(jobs.run)}
    (world.folder / "slurm.json").write_text(json.dumps(answer))
