"""Several processes train one run in a folder that all of them see; what ends one ends all, and one alone continues."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from commands import plimsoll
from plimsoll.api import cluster
from plimsoll.api.cluster import Membership, membership
from plimsoll.engine.program import load
from plimsoll.errors import RecipeError, RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Plan
from plimsoll.planner.bytes import PREDICTED
from plimsoll.processes.environment import CPU_DEVICES
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.saved import from_dict
from plimsoll.training import distributed
from plimsoll.training.checkpoints import read_leaves
from plimsoll.types import StepOptions

SMALL = shlex.split(
    "--width 32 --layers 1 --heads 1 --vocab-size 300 --seq-len 32 --batch-size 16 --steps 1000"
    " --shuffle-buffer-size 16 --micro-batch 8 --remat none --loss-chunk 0 --precision float32 --prefetch 0"
    " --async-save False --eval-every 0 --save-every 4 --log-every 1"
)
PATIENCE = 300
"""Seconds until processes that neither end nor train count as stuck."""
ABORTED = -signal.SIGABRT
"""Exit code of a process that JAX ends because another is gone."""
LOST = 3


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Several:
    """Processes that are started alike, each with its number."""

    def __init__(self, command, *, options=((), ()), folders=(None, None), devices=4):
        environment = os.environ | {CPU_DEVICES: str(devices), "PYTHONPATH": os.pathsep.join(sys.path)}
        self.port = free_port()
        where = ["--coordinator", f"127.0.0.1:{self.port}", "--processes", "2", "--process"]
        self.started = [
            subprocess.Popen(
                [sys.executable, *command, *more, *where, str(number)],
                env=environment,
                cwd=folders[number],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number, more in enumerate(options)
        ]

    def until(self, seen):
        deadline = time.monotonic() + PATIENCE
        while not seen():
            for number, process in enumerate(self.started):
                assert process.poll() is None, f"{number} ended with {process.returncode}: {process.communicate()}"
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def ended(self):
        outputs = [process.communicate(timeout=PATIENCE) for process in self.started]
        return [process.returncode for process in self.started], outputs


def stories(text, run, **options):
    """Two processes that a user's command starts."""
    command = ["-m", "plimsoll.cli.main", "train", "stories", "--dataset-id", str(text), *SMALL, "--run", str(run)]
    return Several(command, **options)


def last_step(run):
    path = run / "metrics.jsonl"
    rows = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return json.loads(rows[-1])["step"] if rows else 0


def newest(run):
    return RunFolder(run).saved_steps()[-1]


@pytest.fixture(scope="module")
def told(text_file, tmp_path_factory):
    """Trained until the second of them was told to stop."""
    run = tmp_path_factory.mktemp("together") / "run"
    several = stories(text_file, run)
    several.until(lambda: last_step(run) >= 2)
    several.started[1].send_signal(signal.SIGTERM)
    return run, *several.ended()


@pytest.fixture(scope="module")
def killed(told, text_file):
    """Started again, until the second of them was killed."""
    run = told[0]
    goal = newest(run) + 5
    several = stories(text_file, run)
    several.until(lambda: last_step(run) >= goal)
    several.started[1].kill()
    return run, *several.ended()


@pytest.mark.slow
def test_what_is_told_to_one_is_saved_by_all_at_the_same_step_and_the_first_alone_writes(told):
    run, codes, outputs = told
    assert codes == [143, 143], outputs
    assert newest(run) == last_step(run)
    assert "plan for stories on cpu x 8" in outputs[0][1]
    assert outputs[1] == ("", "")
    assert json.loads((run / "plan.json").read_text())["hosts"] == 2

    # Only the first writes into the run.
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    ledger = json.loads((run / "ledger.json").read_text())
    assert ledger["per_device"]["devices"] == 8
    load = ledger["measured"]["phases"]["load"], ledger["predicted"]["phases"]["load"]
    assert load[0] <= load[1] + PREDICTED.least_bytes  # each compiles by itself, and that is counted
    assert len(list(run.glob("events.out*"))) == 1
    assert not list((run / "checkpoints").glob(".*"))


@pytest.mark.slow
def test_where_one_is_killed_in_a_step_the_other_stops_and_says_so(killed):
    _, codes, outputs = killed
    assert codes[1] == -signal.SIGKILL
    assert codes[0] in (LOST, -signal.SIGABRT), outputs  # whichever notices first: the step, or JAX's service
    if codes[0] == -signal.SIGABRT:
        return
    errors = [line for line in outputs[0][1].splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, outputs[0][1]
    assert "another process of this run is gone" in errors[0]
    assert "start all its processes again, with the same options" in errors[0]
    assert "Traceback" not in outputs[0][1]


@pytest.mark.slow
def test_what_was_saved_is_what_one_device_learns_from_the_same_batches(killed, text_file, tmp_path):
    """Through two sessions of two processes and two steps of one with one device: no row twice, none lost."""
    run = tmp_path / "run"
    shutil.copytree(killed[0], run)
    goal = newest(run) + 2
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(CPU_DEVICES, "1")
        done = plimsoll("train", "stories", "--dataset-id", text_file, *SMALL, "--run", run, "--max-steps", goal)
    assert done.returncode == 0, done.stderr

    folder = RunFolder(run)
    assert newest(run) == goal
    recipe, prepared = from_dict(folder.read("recipe.json")), Prepared.read(folder)
    plan = Plan.from_dict(folder.planned().plan.to_dict() | {"devices": 1, "fsdp": 1})
    alone, source = load(recipe, plan, StepOptions(), steps=prepared.steps), recipe.open(run).source(prefetch=0)
    state = alone.init(np.uint32(recipe.length.seed))
    for _ in range(goal):
        state, _ = alone.step(state, next(source))
    assert folder.position(goal).loader == source.state()
    expected = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    for path, leaf in read_leaves(folder.checkpoint(goal), only="['params']"):
        assert np.linalg.norm(leaf - expected[path]) <= 1e-5 * np.linalg.norm(expected[path]), path


@pytest.mark.slow
def test_processes_that_were_started_differently_are_refused_each(text_file, tmp_path):
    codes, outputs = stories(text_file, tmp_path / "run", options=(("--seed", "1"), ("--seed", "2"))).ended()
    assert codes == [2, 2], outputs
    for _, errors in outputs:
        assert "were not started alike: --seed is 2 on process 1" in errors
        assert "and 1 on process 0" in errors
        assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_the_first_one_refuses_is_said_by_all(text_file, tmp_path):
    too_many = ("--mesh", "data=16", "--micro-batch", "16")
    codes, outputs = stories(text_file, tmp_path / "run", options=(too_many,) * 2).ended()
    assert codes == [2, 2], outputs
    assert "error: --mesh data=16 needs 16 devices, in equal parts for 2 processes, and cpu has 8" in outputs[0][1]
    assert "error: the first process says: --mesh data=16 needs 16 devices" in outputs[1][1]
    assert all("***" not in errors and "Traceback" not in errors for _, errors in outputs)


@pytest.mark.slow
def test_where_one_reads_other_data_all_stop_and_say_so(text_file, tmp_path):
    """Of the same name and size: each process would take its rows of another text."""
    lines = text_file.read_text().splitlines(keepends=True)
    for name, order in (("a", lines), ("b", lines[::-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.jsonl").write_text("".join(order))
    folders = (tmp_path / "a", tmp_path / "b")
    codes, outputs = stories("/proc/self/cwd/text.jsonl", tmp_path / "run", folders=folders).ended()
    assert codes == [2, 2], outputs
    for _, errors in outputs:
        assert f"do not read the same data. process 1 ({socket.gethostname()}) says: " in errors
        assert "text.jsonl has other content" in errors
        assert "Traceback" not in errors
    assert not RunFolder(tmp_path / "run").saved_steps()


@pytest.mark.slow
def test_a_process_that_waits_for_the_others_can_be_stopped(text_file, tmp_path):
    several = stories(text_file, tmp_path / "run", options=((),))
    several.until(lambda: listens(several.port))
    several.started[0].send_signal(signal.SIGTERM)
    assert several.ended()[0] == [-signal.SIGTERM]
    assert not (tmp_path / "run").exists()


def listens(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


ENDS = """
import os, signal, sys
from plimsoll.api import cluster
from plimsoll.training import distributed

case, *_, number = sys.argv[1:]
is_struck = number == "1"
distributed.HEARTBEAT_SECONDS = 6


def strike():
    print("struck", flush=True)
    if "killed" in case:
        os.kill(os.getpid(), signal.SIGKILL)
    elif case == "frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif case == "error":
        raise KeyError("a fault of its own")
    elif case == "disk":
        raise OSError(28, "No space left on device", "ledger.json")


def train(session):
    if case == "killed while the other waits":
        return strike() if is_struck else distributed.of_each("never", 0)
    agreed = distributed.Agreement()
    for step in range(200_000):
        agreed(0)
        if step == 50 and is_struck:
            strike()
    return 0


cluster._session = lambda question: {"run": "."}
cluster._train = train
where = dict(zip(sys.argv[2::2], sys.argv[3::2]))
cluster.train_together({"coordinator": where["--coordinator"], "processes": 2, "process": int(number)})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "struck", "other", "words"),
    [
        ("killed while the other waits", -signal.SIGKILL, ABORTED, "another task died"),
        ("frozen", -signal.SIGKILL, ABORTED, "stopped sending heartbeats"),
        ("error", 1, LOST, "error: another process of this run is gone ("),
        ("disk", LOST, LOST, "error: another process of this run is gone ("),
    ],
)
def test_what_ends_one_ends_the_other(case, struck, other, words):
    started = time.monotonic()
    several = Several(["-c", ENDS, case], devices=1)
    _, errors = several.started[0].communicate(timeout=PATIENCE)
    assert time.monotonic() - started < 60
    if case == "frozen":
        several.started[1].kill()
    own = several.started[1].communicate(timeout=PATIENCE)
    codes = [process.returncode for process in several.started]
    assert codes == [other, struck], (errors, own)
    assert words in errors
    assert "struck" in own[0]
    if case == "error":
        assert "KeyError: 'a fault of its own'" in own[1]
    if case == "disk":
        assert own[1].startswith("error: training stopped: the disk is full ([Errno 28]")


SAVING = """
import json, sys
from unittest import mock

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plimsoll.errors import StoppedError
from plimsoll.files.run_folder import RunFolder
from plimsoll.levers.ema import Average
from plimsoll.recipes.recommend.items import with_items
from plimsoll.training import distributed
from plimsoll.training.checkpoints import Checkpoints
from plimsoll.training.initial_weights import with_initial

_, folder, _, coordinator, _, _, _, number = sys.argv
distributed.join(coordinator, 2, int(number))
mesh = Mesh(np.array(jax.devices()), ("all",))
whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("all"))
told = {}


def mine(leaf):
    return np.asarray(leaf.addressable_shards[0].data).tolist()


# Saved beside what goes on, and read again.
filled = jax.jit(
    lambda value: {"whole": jax.numpy.full(10, value), "split": value * jax.numpy.arange(64.0)},
    out_shardings={"whole": whole, "split": split},
)
with Checkpoints(RunFolder(folder), in_background=True) as checkpoints:
    checkpoints.save(1, filled(3.0), {"at": 3})
    checkpoints.wait()
    loaded, _ = checkpoints.newest(filled(0.0))
    told["read"] = [loaded.position.step, loaded.position.loader, *map(mine, jax.tree.leaves(loaded.state))]
    try:
        checkpoints.save(2, filled(float("nan")), {})
    except StoppedError as refusal:
        told["refusal"] = str(refusal)

# Weights that are given.
drawn = jax.jit(
    lambda: {
        "kept": jax.numpy.arange(64, dtype="uint16"),
        "bits": jax.numpy.zeros(64, "uint16"),
        "given": jax.numpy.ones(64),
    },
    out_shardings=split,
)()
items = {"trainable": {"items": {"embedding": drawn["given"].reshape(32, 2)}}}
rows = np.array([[3.0, 4.0], [0.0, 0.0]] * 16, np.float32)
told["items"] = np.asarray(with_items(items, rows)["trainable"]["items"]["embedding"])[:2].tolist()
given = np.linspace(-2, 2, 64, dtype=np.float32)
state = {"params": {"trainable": drawn}, "ema": jax.tree.map(lambda leaf: leaf.astype("float32"), drawn)}


def begin(params):
    return params | {"trainable": params["trainable"] | {"bits": given, "given": given}}


with mock.patch.object(multihost_utils, "process_allgather", side_effect=AssertionError("sent")):
    begun = with_initial(state, begin, Average(0.9, 32))
told["begun"] = {name: mine(leaf) for name, leaf in begun["params"]["trainable"].items()}
told["average"] = mine(begun["ema"]["given"])
print(json.dumps(told))
distributed.end(0, together=True)
"""


@pytest.mark.slow
def test_what_two_save_each_reads_again_and_weights_that_are_given_are_split_between_them(tmp_path):
    codes, outputs = Several(["-c", SAVING, str(tmp_path)], devices=1).ended()
    assert codes == [0, 0], outputs
    numbers = np.arange(64.0) * 3
    given = np.linspace(-2, 2, 64, dtype=np.float32)
    as_bits = given.astype(jax.numpy.bfloat16).view(np.uint16)
    for number, (out, _) in enumerate(outputs):
        told, half = json.loads(out.splitlines()[-1]), slice(32 * number, 32 * number + 32)
        assert told["read"] == [1, {"at": 3}, numbers[half].tolist(), [3] * 10]
        assert "step 2: ['split'] is not finite, so nothing was saved" in told["refusal"]
        kept = list(range(64))[half]
        assert told["begun"] == {"kept": kept, "bits": as_bits[half].tolist(), "given": given[half].tolist()}
        assert told["average"] == given[half].tolist()
        assert np.allclose(told["items"], [[0.48, 0.64], [1, 1]])  # an item without a row keeps the random one

    # One alone reads it, too.
    folder = RunFolder(tmp_path)
    assert folder.saved_steps() == [1]
    assert dict(read_leaves(folder.checkpoint(1)))["['split']"].tolist() == numbers.tolist()


SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (SLURM | {"SLURM_NTASKS": "1"}, None),
        (SLURM | {"SLURM_NTASKS": "2"}, Membership()),
        ({"SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"}, None),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_MCA_orte_hnp_uri": "1;tcp://n1:9"}, Membership()),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, Membership()),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
    ],
)
def test_others_are_looked_for_only_where_a_cluster_says_that_there_are_some(variables, expected):
    assert membership(None, None, None, variables=variables) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("host:1", None, None), "go together"),
        (("host", 2, 0), "is not HOST:PORT"),
        (("host:99999999", 2, 0), "with a port of at most 65,535"),
        (("host:1", 2, 2), "go together, and are .*2, 2"),
    ],
)
def test_half_an_address_is_refused_and_one_process_is_alone(given, words):
    assert membership("host:1", 1, 0, variables={}) is None
    with pytest.raises(RecipeError, match=words):
        membership(*given, variables={})


def test_a_bucket_is_refused_for_several():
    options = type("Options", (), {"run": "s3://bucket/run"})()
    with pytest.raises(RunError, match="--run s3://bucket/run is an address, and several processes need a folder"):
        cluster.start(None, options, Membership("host:1", 2, 0))


@pytest.mark.parametrize("sees", [True, False])
def test_a_folder_that_one_does_not_see_is_refused_by_all_before_training(tmp_path, monkeypatch, sees):
    """Under the same path, the second one has another folder."""
    number, meeting, words = threading.local(), threading.Barrier(2), {}

    def of_each(topic, value):
        words[number.own] = value
        meeting.wait()
        values = [words[0], words[1]]
        meeting.wait()
        return values

    monkeypatch.setattr(distributed, "process", lambda: number.own)
    monkeypatch.setattr(distributed, "of_each", of_each)
    monkeypatch.setattr(distributed, "of_first", lambda topic, answer: of_each(topic, number.own or answer())[0])
    monkeypatch.setattr(distributed, "barrier", lambda place: of_each(place, True))
    folders = [RunFolder(tmp_path / "run"), RunFolder(tmp_path / ("run" if sees else "elsewhere"))]
    for folder in folders:
        folder.create()

    def refusal(own):
        number.own = own
        try:
            cluster._require_seen(folders[own], ["a", "b"])
        except RunError as problem:
            return str(problem)

    with ThreadPoolExecutor(2) as threads:
        refusals = list(threads.map(refusal, range(2)))
    if sees:
        assert refusals == [None, None]
    else:
        assert all("process 1 (b) says: No such file or directory. Name a --run" in of for of in refusals)
    assert not list(folders[0].checkpoints.iterdir())


@pytest.mark.slow
def test_doctor_reports_the_devices_of_every_process():
    codes, outputs = Several(["-m", "plimsoll.cli.main", "doctor", "--json"]).ended()
    assert codes == [0, 0], outputs
    reported = [json.loads(out)["jax"]["processes"] for out, _ in outputs]
    assert reported[0] == reported[1]
    assert [len(process["devices"]) for process in reported[0]] == [4, 4]
    assert {process["host"] for process in reported[0]} == {socket.gethostname()}
