"""Two processes with four devices each train one run; what stops one stops both, and one alone continues."""

import contextlib
import json
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from commands import called, plimsoll
from plimsoll.api.cluster import Membership, _explained, _where_to_save, membership
from plimsoll.engine.program import load
from plimsoll.errors import RecipeError
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Plan
from plimsoll.processes import peers
from plimsoll.processes.environment import CPU_DEVICES, for_several
from plimsoll.recipes.base import Prepared
from plimsoll.recipes.saved import from_dict
from plimsoll.training import distributed, overruns
from plimsoll.training.checkpoint import Checkpoints, loader_position, read_leaves
from plimsoll.training.crossing import Crossing
from plimsoll.units import MIB, format_bytes
from told import Told

SMALL = shlex.split(
    "--width 32 --layers 1 --heads 1 --vocab-size 300 --seq-len 32 --batch-size 16 --steps 1000"
    " --shuffle-buffer-size 16 --micro-batch 8 --remat none --loss-chunk 0 --precision float32 --prefetch 0"
    " --async-save False --eval-every 0 --save-every 4 --log-every 1"
)
PATIENCE = 600
"""Seconds until processes that neither end nor train count as stuck."""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Several:
    """Processes that train one run together, each started by the command a user types."""

    def __init__(self, text: Path | str, run: Path, *, options=((), ()), folders=(None, None), caches=None) -> None:
        environment = os.environ | {CPU_DEVICES: "4", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "plimsoll.cli.main", "train", "stories", "--dataset-id", str(text), *SMALL]
        where = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--run", str(run)]
        self.run = run
        self.started = [
            subprocess.Popen(
                [*command, *where, "--process", str(number), *more],
                env=environment | ({"PLIMSOLL_CACHE": str(caches[number])} if caches else {}),
                cwd=folders[number],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number, more in enumerate(options)
        ]

    def until_step(self, step):
        deadline = time.monotonic() + PATIENCE
        while last_step(self.run) < step:
            for number, process in enumerate(self.started):
                assert process.poll() is None, f"{number} ended with {process.returncode}: {process.communicate()}"
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def trains(self, number):
        """The process that trains under a command."""
        parent = self.started[number].pid
        return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])

    @contextlib.contextmanager
    def slowed(self, number):
        """Gives one of two a core that it shares with three other programs, and its twin the rest."""
        *rest, last = sorted(os.sched_getaffinity(0))
        for each, cores in ((number, [last]), (1 - number, rest)):
            for thread in Path(f"/proc/{self.trains(each)}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
        try:
            for process in busy:
                os.sched_setaffinity(process.pid, [last])
            yield
        finally:
            for process in busy:
                process.kill()
                process.wait()

    def starve(self, number):
        """Lets one process have no more memory than it has."""
        child = self.trains(number)
        pages = int(Path(f"/proc/{child}/statm").read_text().split()[0])
        resource.prlimit(child, resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**16,) * 2)

    def ended(self):
        outputs = [process.communicate(timeout=PATIENCE) for process in self.started]
        return [process.returncode for process in self.started], outputs


def last_step(run):
    path = run / "metrics.jsonl"
    rows = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return json.loads(rows[-1])["step"] if rows else 0


def steps_saved(run):
    return [saved.step for saved in Checkpoints(run / "checkpoints", in_background=False).all()]


@pytest.fixture(scope="module")
def told(text_file, tmp_path_factory):
    """Trained until the second of them was told to stop."""
    run = tmp_path_factory.mktemp("together") / "run"
    several = Several(text_file, run)
    several.until_step(2)
    several.started[1].send_signal(signal.SIGTERM)
    return run, *several.ended()


@pytest.fixture(scope="module")
def killed(told, text_file):
    """Started again, until the process that trains under the second command was killed."""
    run = told[0]
    several = Several(text_file, run)
    several.until_step(steps_saved(run)[0] + 5)
    os.kill(several.trains(1), signal.SIGKILL)
    return run, *several.ended()


@pytest.mark.slow
def test_what_is_told_to_one_is_saved_by_all_at_the_same_step(told):
    run, codes, outputs = told
    assert codes == [143, 143], outputs
    assert steps_saved(run)[0] == last_step(run)
    assert "plan for stories on cpu x 8" in outputs[0][0]
    assert not outputs[1][0]


@pytest.mark.slow
def test_only_the_first_writes_into_the_run(told):
    run = told[0]
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    ledger = json.loads((run / "ledger.json").read_text())
    assert ledger["per_device"]["devices"] == 8
    assert ledger["measured"]["phases"]["load"] <= 1.05 * ledger["predicted"]["peak_bytes"]  # and it has compiled
    assert len(list(run.glob("events.out*"))) == 1


@pytest.mark.slow
def test_each_writes_what_it_holds_and_the_first_has_it_all_named(told):
    """Of a state that all hold, each writes about half."""
    saved = Checkpoints(told[0] / "checkpoints", in_background=False).all()[0]
    folders = [saved.path / f"process-{number:05d}" for number in range(2)]
    sizes = [sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) for folder in folders]
    assert min(sizes) > 0.3 * max(sizes)
    named = json.loads((saved.path / "manifest.json").read_text())
    there = {str(path.relative_to(saved.path)) for path in saved.path.rglob("*") if path.is_file()}
    assert named.keys() == there - {"manifest.json"}
    assert not list((told[0] / "checkpoints").glob(".*"))


SAVING = """
import gc, json, signal, sys, time
from pathlib import Path
from unittest import mock
import jax, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from plimsoll.errors import StoppedError
from plimsoll.levers.ema import Average
from plimsoll.recipes.recommend.items import with_items
from plimsoll.training import distributed, memory
from plimsoll.training.checkpoint import Checkpoints, _load_own
from plimsoll.training.initial_weights import with_initial
number, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
distributed.join(f"127.0.0.1:{port}", 2, number)
mesh = Mesh(np.array(jax.devices()), ("all",))
whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("all"))
filled = jax.jit(lambda value: {"params": jax.numpy.full(10, value)}, out_shardings=whole)
good, told = filled(3.0), {}
checkpoints = Checkpoints(folder, in_background=True, shared=folder)
checkpoints.save(1, good, {"at": 3})
checkpoints.wait()
like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), good)
step, found, position, _ = checkpoints.newest(like)
assert (step, position) == (1, {"at": 3})
assert (np.asarray(found["params"].addressable_shards[0].data) == 3).all()
try:
    checkpoints.save(2, filled(float("nan")), {})
    checkpoints.wait()
except StoppedError as refusal:
    told["refusal"] = str(refusal)
assert [saved.step for saved in checkpoints.all()] == [1]

# The second one comes to a barrier once a handler of the first has run, which waits there.
board = distributed.Board()
if number == 0:
    signal.signal(signal.SIGALRM, lambda *_: board.write("handled", True))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
else:
    deadline = time.monotonic() + 60
    while not board.latest("handled") and time.monotonic() < deadline:
        time.sleep(0.05)
handled = board.latest("handled")
distributed.barrier("handled")
assert number == 0 or handled

drawn = jax.jit(lambda: {
    "kept": jax.numpy.arange(64, dtype="uint16"), "bits": jax.numpy.zeros(64, "uint16"), "given": jax.numpy.ones(64)
}, out_shardings=split)()
items = {"trainable": {"items": {"embedding": drawn["given"].reshape(32, 2)}}}
rows = np.array([[3.0, 4.0], [0.0, 0.0]] * 16, np.float32)
told["items"] = np.asarray(with_items(items, rows)["trainable"]["items"]["embedding"])[:2].tolist()
given = np.linspace(-2, 2, 64, dtype=np.float32)
begin = lambda params: params | {"trainable": params["trainable"] | {"bits": given, "given": given}}
state = {"params": {"trainable": drawn}, "ema": jax.tree.map(lambda leaf: leaf.astype("float32"), drawn)}
with mock.patch.object(multihost_utils, "process_allgather", side_effect=AssertionError("sent")):
    begun = with_initial(state, begin, Average(0.9, 32))
told["begun"] = {
    name: np.asarray(leaf.addressable_shards[0].data).tolist() for name, leaf in begun["params"]["trainable"].items()
}
told["average"] = np.asarray(begun["ema"]["given"].addressable_shards[0].data).tolist()

large = jax.jit(lambda: {str(at): jax.numpy.full(2**22, float(at)) for at in range(8)}, out_shardings=split)()
jax.block_until_ready(large)
distributed.barrier("made")
Path("/proc/self/clear_refs").write_text("5")  # the largest so far begins anew
before = memory.resident_bytes()
Checkpoints(folder / "unseen", in_background=False).save(1, large, {})
told["grown"] = memory.peak_resident_bytes() - before

checkpoints.save(3, large, {})
checkpoints.wait()
like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), large)

class Again(distributed.Board):  # a session reads once
    def write(self, name, value):
        super().write(f"again-{name}", value)
    def read_first_of(self, *names):
        name, value = super().read_first_of(*(f"again-{name}" for name in names))
        return name.removeprefix("again-"), value
    def read(self, name):
        return self.read_first_of(name)[1]

def received():
    with mock.patch.object(distributed, "Board", Again):
        return Checkpoints(folder / "unseen", in_background=False).newest(like)[1]

readings = {"read": lambda: _load_own(checkpoints.all()[0], like), "received": received}
for name, read in readings.items():
    jax.tree.map(lambda leaf: leaf.delete(), large)
    gc.collect()
    memory.trim()
    memory.settle(patience=3.0, interval=0.1)  # other threads free, too
    distributed.barrier("deleted")
    Path("/proc/self/clear_refs").write_text("5")
    before = memory.resident_bytes()
    large = read()
    told[name] = memory.peak_resident_bytes() - before
    for at, leaf in large.items():
        assert (np.asarray(leaf.addressable_shards[0].data) == float(at)).all()
print(json.dumps(told))
distributed.leave()
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Folder in which two processes saved, and what each of them told."""
    folder = tmp_path_factory.mktemp("saved")
    environment = for_several("cpu") | {"PYTHONPATH": os.pathsep.join(sys.path)}  # freed arrays leave at once
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SAVING, str(number), port, folder],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    ended = [(*process.communicate(timeout=PATIENCE), process.returncode) for process in started]
    assert [code for *_, code in ended] == [0, 0], ended
    return folder, [json.loads(said.splitlines()[-1]) for said, *_ in ended]


@pytest.mark.slow
def test_one_with_nothing_to_write_saves_and_what_one_refuses_is_said_by_all(two):
    """Of a state of one array that both hold, the first writes all."""
    folder, told = two
    for of_process in told:
        assert "process 0: step 2: ['params']@0 is not finite, so nothing was saved" in of_process["refusal"]
    assert [path.name for path in folder.glob("step-00000001/process-*")] == ["process-00000"]
    assert not list(folder.glob(".*"))


@pytest.mark.slow
def test_weights_that_are_given_are_split_between_processes_and_nothing_is_sent(two):
    given = np.linspace(-2, 2, 64, dtype=np.float32)
    as_bits = given.astype(jax.numpy.bfloat16).view(np.uint16)
    for number, told in enumerate(two[1]):
        half = slice(32 * number, 32 * number + 32)
        assert told["begun"] == {
            "kept": list(range(64))[half],
            "bits": as_bits[half].tolist(),
            "given": given[half].tolist(),
        }
        assert told["average"] == given[half].tolist()


@pytest.mark.slow
def test_items_without_a_row_keep_the_random_one_of_a_table_that_is_split_between_processes(two):
    for told in two[1]:
        assert np.allclose(told["items"], [[0.48, 0.64], [1, 1]])


@pytest.mark.slow
def test_of_a_state_that_is_gathered_only_the_first_process_keeps_more_than_a_leaf(two):
    """Of 128 MiB in leaves of 16."""
    folder, (first, second) = two
    assert (folder / "unseen/step-00000001/manifest.json").exists()
    assert first["grown"] >= 128 * MIB
    assert second["grown"] < 64 * MIB


@pytest.mark.slow
def test_a_process_that_continues_holds_its_half_and_a_few_leaves(two):
    """Half of 128 MiB: 90 beside what was there, less where a library still held what it had saved."""
    assert all(8 * MIB < told["read"] < 128 * MIB for told in two[1])


@pytest.mark.slow
def test_a_process_that_does_not_see_the_checkpoint_receives_its_half_and_no_more(two):
    """Half of 128 MiB; the first one reads leaves of 16 MiB besides."""
    first, second = (told["received"] for told in two[1])
    assert first < 128 * MIB
    assert second < 84 * MIB


@pytest.mark.slow
def test_where_one_is_gone_the_other_stops_and_says_so(killed):
    run, codes, outputs = killed
    assert codes == [3, 137], outputs[0][1][-3000:]
    assert f"process 1 ({socket.gethostname()}), which trains with this one, is gone" in outputs[0][1]
    assert "the process that trained was killed (SIGKILL)" in outputs[1][1]
    assert "Start all processes of the run again" in outputs[1][1]
    assert all("***" not in errors for _, errors in outputs)  # no stack of a library's
    assert "start all of them again with the same command" in outputs[0][1]
    assert json.loads((run / "plan.json").read_text())["hosts"] == 2


def straggler(run):
    path = run / "processes.json"
    return json.loads(path.read_text())["straggler"] if path.exists() else None


@pytest.fixture(scope="module")
def straggled(text_file, tmp_path_factory):
    """The second one was slowed until it was named, and then got no more memory."""
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("on the only core, what slows one process slows the other")
    run = tmp_path_factory.mktemp("straggled") / "run"
    several = Several(text_file, run, options=(("--async-save", "True"),) * 2)
    several.until_step(2)
    deadline = time.monotonic() + PATIENCE
    with several.slowed(1):
        while straggler(run) is None:
            assert all(process.poll() is None for process in several.started), several.ended()
            assert time.monotonic() < deadline, (run / "processes.json").read_text()
            time.sleep(0.1)
        several.starve(1)
        return run, *several.ended()


@pytest.mark.slow
def test_a_process_that_other_programs_slow_is_named_by_training_runs_and_the_report(straggled):
    run, _, outputs = straggled
    assert straggler(run) == 1
    named = f"process 1 ({socket.gethostname()}) is the slowest: it "
    assert named in outputs[0][1]
    assert named in (run / "log.txt").read_text()
    assert "    the others wait for process 1" in called("runs", run.parent).stdout.splitlines()
    assert called("report", run, "--no-model").returncode == 0
    assert "The others wait for process 1 in every step." in (run / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.by_hand), 1])
def test_where_one_has_no_memory_left_all_stop_and_say_which(request, text_file, tmp_path, number):
    if number == 1:
        _, codes, outputs = request.getfixturevalue("straggled")
    else:
        several = Several(text_file, tmp_path / "run", options=(("--async-save", "True"),) * 2)
        several.until_step(2)
        several.starve(number)
        codes, outputs = several.ended()
    assert codes == [3, 3], outputs
    assert "this process gets no more memory" in outputs[number][1]
    assert f"process {number}" in outputs[1 - number][1]
    assert "this process gets no more memory" in outputs[1 - number][1]
    assert all("Traceback" not in errors and "***" not in errors for _, errors in outputs)


@pytest.fixture(scope="module")
def alone(killed, text_file, tmp_path_factory):
    """A copy of what two processes trained, continued for two steps by one process with one device."""
    run = tmp_path_factory.mktemp("alone") / "run"
    shutil.copytree(killed[0], run)
    options = ["--run", run, "--max-steps", steps_saved(run)[0] + 2]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(CPU_DEVICES, "1")
        done = plimsoll("train", "stories", "--dataset-id", text_file, *SMALL, *options)
    assert done.returncode == 0, done.stderr
    assert steps_saved(run)[0] == steps_saved(killed[0])[0] + 2
    return run


@pytest.mark.slow
def test_what_was_saved_is_what_one_device_learns_from_the_same_batches(alone):
    """Through two sessions of two processes and one of one: no row twice, none lost."""
    run = RunFolder(alone)
    recipe, prepared = from_dict(run.read("recipe.json")), Prepared(**run.read("data.json"))
    plan = Plan.from_dict({**run.read("plan.json")["plan"], "devices": 1, "fsdp": 1})
    alone, source = load(recipe, plan, steps=prepared.steps), recipe.source(run.path, prefetch=0)
    saved = Checkpoints(run.checkpoints, in_background=False).all()[0]
    state = alone.init(np.uint32(recipe.seed))
    for _ in range(saved.step):
        state, _ = alone.step(state, next(source))
    assert loader_position(saved) == source.state()
    expected = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    for path, leaf in read_leaves(saved, only="['params']"):
        assert np.linalg.norm(leaf - expected[path]) <= 1e-5 * np.linalg.norm(expected[path]), path


@pytest.mark.slow
def test_processes_that_were_started_differently_are_refused_each(text_file, tmp_path):
    codes, outputs = Several(text_file, tmp_path / "run", options=(("--seed", "1"), ("--seed", "2"))).ended()
    assert codes == [2, 2], outputs
    for _, errors in outputs:
        assert "were not started alike: --seed is 2 on process 1" in errors
        assert "and 1 on process 0" in errors
        assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_the_first_one_refuses_is_said_by_all(text_file, tmp_path):
    too_many = ("--mesh", "data=16", "--micro-batch", "16")
    codes, outputs = Several(text_file, tmp_path / "run", options=(too_many,) * 2).ended()
    assert codes == [2, 2], outputs
    assert "--mesh data=16 needs 16 devices, and there are 8 in 2 processes, 4 in each" in outputs[0][1]
    assert "the first process says: --mesh data=16 needs 16 devices" in outputs[1][1]


@pytest.mark.slow
def test_where_one_reads_other_data_all_stop_and_say_so(text_file, tmp_path):
    """Of the same name and size: each process would take its rows of another text."""
    lines = text_file.read_text().splitlines(keepends=True)
    for name, order in (("a", lines), ("b", lines[::-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.jsonl").write_text("".join(order))
    folders = (tmp_path / "a", tmp_path / "b")
    codes, outputs = Several("text.jsonl", tmp_path / "run", folders=folders).ended()
    assert codes == [2, 2], outputs
    for _, errors in outputs:
        assert "do not read the same data. process 1 says: text.jsonl is not the data of this run any more" in errors
        assert "Traceback" not in errors
    assert not steps_saved(tmp_path / "run")


@pytest.mark.by_hand
def test_each_machine_makes_its_own_tokens_and_they_are_the_same(text_file, tmp_path):
    caches = [tmp_path / name for name in ("first", "second")]
    several = Several(text_file, tmp_path / "run", caches=caches, options=(("--max-steps", "2"),) * 2)
    codes, outputs = several.ended()
    assert codes == [0, 0], outputs
    told = json.loads((tmp_path / "run/processes.json").read_text())["processes"]
    assert {row["host"] for row in told} == {socket.gethostname()}
    assert 0 in {row["process"] for row in told}
    first, second = (sorted(path for path in (cache / "tokens").rglob("*.bin")) for cache in caches)
    assert [path.relative_to(caches[0]) for path in first] == [path.relative_to(caches[1]) for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.slow
def test_a_process_that_waits_for_the_others_can_be_stopped(text_file, tmp_path):
    several = Several(text_file, tmp_path / "run", options=((),))
    port = int(several.started[0].args[several.started[0].args.index("--coordinator") + 1].rpartition(":")[2])
    deadline = time.monotonic() + PATIENCE
    while not listens(port):
        assert several.started[0].poll() is None, several.ended()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    several.started[0].send_signal(signal.SIGTERM)
    codes, outputs = several.ended()
    assert codes == [143], outputs
    assert "stopped while it waited for the other processes: nothing was begun" in outputs[0][1]
    assert not (tmp_path / "run").exists()


def listens(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


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
        (("host:\u00b2", 2, 0), "is not HOST:PORT"),
        (("host:1", 2, 2), "--process 2 is none of --processes 2"),
    ],
)
def test_half_an_address_is_refused(given, words):
    with pytest.raises(RecipeError, match=words):
        membership(*given, variables={})


@pytest.mark.parametrize("sees", [True, False])
def test_processes_save_together_where_each_sees_the_folder(tmp_path, monkeypatch, sees):
    number = threading.local()
    monkeypatch.setattr(distributed, "process", lambda: number.own)
    monkeypatch.setattr(distributed, "processes", lambda: 2)
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    board, reached = Told(), []
    monkeypatch.setattr(Crossing, "connect", lambda crossing: reached.append(number.own))

    class Elsewhere:
        write = board.write

        def read(self, name):
            value = board.read(name)
            return [str(tmp_path / "nowhere"), value[1]] if name == "where-to-save" and not sees else value

    def asked(own):
        number.own = own
        session = {"run": str(tmp_path / "run"), "notes": ["a note"]}
        return _where_to_save((board, Elsewhere())[own], session, ["a", "b"])

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(asked, range(2)))
    if sees:
        assert found == [{"shared": str(tmp_path / "run/checkpoints")}] * 2
    else:
        note, said = found[0]["notes"]
        assert note == "a note"
        assert said.startswith("process 1 (b) cannot write to ")
        assert "the first process writes all of each checkpoint" in said
        assert "shared" not in found[0] | found[1]
    assert sorted(reached) == ([] if sees else [0, 1])  # what could not cross at a save is refused before training
    assert not list((tmp_path / "run/checkpoints").iterdir())


FULL = """
import errno, os
from plimsoll.api import cluster
from plimsoll.training import distributed

def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "ledger.json")

distributed.join = lambda *_, **__: None
cluster._train = full
cluster.train_together({"coordinator": "a:1", "processes": 2, "process": 0, "scratch": "."}, None)
"""


def test_an_error_of_the_disk_ends_one_of_several_with_its_own_words(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    how = {"env": environment, "cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-c", FULL], **how)
    words = (
        "error: training stopped: the disk is full ([Errno 28] No space left on device: 'ledger.json'). Make room, and"
    )
    ends = "run the same command again to continue, on all processes of the run"
    assert (done.returncode, done.stderr.strip()) == (3, f"{words} {ends}")


def test_one_process_is_alone():
    assert membership("host:1", 1, 0, variables={}) is None


@pytest.mark.slow
def test_doctor_reports_the_devices_of_every_process():
    environment = os.environ | {CPU_DEVICES: "4", "PYTHONPATH": os.pathsep.join(sys.path)}
    where = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--json"]
    command = [sys.executable, "-m", "plimsoll.cli.main", "doctor", *where, "--process"]
    started = [
        subprocess.Popen([*command, str(number)], env=environment, stdout=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    reported = [json.loads(process.communicate(timeout=PATIENCE)[0])["jax"]["processes"] for process in started]
    assert reported[0] == reported[1]
    assert [len(process["devices"]) for process in reported[0]] == [4, 4]
    assert {process["host"] for process in reported[0]} == {socket.gethostname()}


FAULTY = """
import os
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

import plimsoll

FAULT, HELD = os.environ.get("FAULT"), []


def refused_if(fault):
    if FAULT == fault:
        jnp.zeros(2**45).block_until_ready()


class Batches:
    def __init__(self, source):
        self.source, self.taken = source, 0

    def __getattr__(self, name):
        return getattr(self.source, name)

    def __next__(self):
        self.taken += 1
        if self.taken == 4:
            refused_if("training")
        return next(self.source)


@dataclass(frozen=True, kw_only=True)
class Faulty(plimsoll.OwnRecipe):
    def init(self, key):
        return {"w": jnp.ones(2)}

    def loss(self, params, batch):
        return ((batch["x"] @ params["w"]) ** 2).sum(), batch["x"].size

    def data(self):
        return {"x": np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)}

    validation_data = data

    def optimizer(self, steps):
        return optax.adam(1e-3)

    def source(self, folder, *, prefetch):
        refused_if("starting")
        return Batches(super().source(folder, prefetch=prefetch))

    def validation(self, folder, *, examples):
        refused_if("evaluating")
        if FAULT == "holding" and not HELD:
            HELD.append(b"x" * 400 * 2**20)
        if FAULT == "ending":
            (Path(__file__).parent / "run/ledger.json").mkdir(exist_ok=True)
        return super().validation(folder, examples=examples)


recipe = Faulty(batch_size=8, steps=10)
"""


@pytest.mark.by_hand
def test_what_memory_one_lacks_or_holds_stops_all_which_say_which_it_was(tmp_path):
    """Its process 1 is refused memory before the first step, then after three, then in an evaluation, whose state it
    saves, and then goes over the budget.


    At last process 0 cannot write what it has measured, when the other one has nothing more to do.
    """
    (tmp_path / "faulty.py").write_text(FAULTY)
    run = tmp_path / "run"
    command = [sys.executable, "-m", "plimsoll.cli.main", "train", str(tmp_path / "faulty.py"), "--run", str(run)]
    command += shlex.split("--processes 2 --micro-batch 8 --memory 400MiB --eval-every 2 --save-every 100 --prefetch 0")

    def ended(fault, *more):
        where = ["--coordinator", f"127.0.0.1:{free_port()}", "--process"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        started = [
            subprocess.Popen(
                [*command, *more, *where, str(number)],
                env=environment | ({"FAULT": fault} if number else {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        said = ["".join(process.communicate(timeout=PATIENCE)) for process in started]
        assert [process.returncode for process in started] == [3, 3], said
        assert all("Traceback" not in each and "***" not in each for each in said)
        return said

    host = socket.gethostname()
    for fault, saved in {"starting": [], "training": [2], "evaluating": [4, 2]}.items():
        first, second = ended(fault)
        assert "training stopped: this process gets no more memory (RESOURCE_EXHAUSTED" in second
        assert f"process 1 ({host}), which trains with this one, has ended. It says: training stopped: this" in first
        assert "planning again" not in first + second
        assert steps_saved(run) == saved

    first, _ = ended("holding")
    (overrun,) = overruns.read(RunFolder(run))
    assert (overrun.what, overrun.process, overrun.step) == ("resident set", 1, steps_saved(run)[0])
    own = json.loads((run / "ledger.json").read_text())["session"]["peak_bytes"]
    assert overrun.measured_bytes > overrun.budget_bytes > own
    assert f"the resident set of process 1 reached {format_bytes(overrun.measured_bytes)}" in first

    (run / "ledger.json").unlink()
    first, second = ended("ending", "--keep-plan")
    assert "error: training stopped: [Errno 21] Is a directory" in first
    assert f"process 0 ({host}), which trains with this one, has ended. It says: training stopped: [Errno" in second


OWN = """
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

import plimsoll

HERE = Path(__file__).parent


def data():
    while (HERE / "slow").exists():
        (HERE / "preparing").touch()
        time.sleep(0.05)
    return {"x": np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)}


recipe = plimsoll.recipe(
    init=lambda key: {"w": jnp.ones(2)},
    loss=lambda params, batch: (((batch["x"] @ params["w"]) ** 2).sum(), batch["x"].size),
    data=data,
    optimizer=lambda steps: optax.adam(1e-3),
    batch_size=8,
    steps=3,
)
"""


def own_started(folder):
    words = ["train", str(folder / "own.py"), "--run", str(folder / "run"), "--micro-batch", "8"]
    where = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--process"]
    command = [sys.executable, "-m", "plimsoll.cli.main", *words, *where]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return [
        subprocess.Popen([*command, str(number)], env=environment, stderr=subprocess.PIPE, text=True)
        for number in range(2)
    ]


def own_ended(started):
    return [(process.communicate(timeout=PATIENCE)[1], process.returncode) for process in started]


@pytest.mark.by_hand
def test_a_recipe_of_ones_own_whose_model_the_first_one_runs_while_it_prepares(tmp_path):
    """A signal meanwhile ends both with its number, whoever got it, and the same commands begin again."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "slow").touch()
    for told, number in enumerate((signal.SIGTERM, signal.SIGINT)):
        (tmp_path / "preparing").unlink(missing_ok=True)
        started = own_started(tmp_path)
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / "preparing").exists():
            assert all(process.poll() is None for process in started), own_ended(started)
            assert time.monotonic() < deadline
            time.sleep(0.01)
        started[told].send_signal(number)
        ended = own_ended(started)  # what prepares is slow until it is ended
        assert [code for _, code in ended] == [128 + number] * 2, ended
        said = f"stopped by {number.name} before the first step"
        assert ended[told][0].startswith(f"error: {said}: what was saved is whole, and all processes of the run are")
        assert ended[1 - told][0].startswith(f"error: process {told} ({socket.gethostname()}), which trains with this")
        assert f"It says: {said}. Here nothing more" in ended[1 - told][0]
        assert [errors.count("\n") for errors, _ in ended] == [1, 1]
    (tmp_path / "slow").unlink()
    ended = own_ended(own_started(tmp_path))
    assert [code for _, code in ended] == [0, 0], ended
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row][-1] == 3


LEAVING = """
import json, os, signal, sys
from plimsoll.api import cluster
from plimsoll.processes.interruption import Interruption
from plimsoll.training import distributed
number, port, scratch = sys.argv[1:]
distributed.HEARTBEAT_SECONDS = 4
cluster._train = lambda *_: 0
if number == "1":
    distributed.leave = lambda _: os.kill(os.getpid(), signal.SIGKILL)
where = {"coordinator": f"127.0.0.1:{port}", "processes": 2, "process": int(number)}
cluster.train_together(where | {"scratch": scratch}, Interruption())
"""


@pytest.mark.slow
def test_one_that_is_killed_when_all_is_done_does_not_spoil_the_end_of_another(tmp_path):
    environment, port = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, str(free_port())
    for number in ("0", "1"):
        (tmp_path / number).mkdir()
    started = [
        subprocess.Popen([sys.executable, "-c", LEAVING, number, port, tmp_path / number], env=environment)
        for number in ("0", "1")
    ]
    codes = [process.wait(timeout=PATIENCE) for process in started]
    assert codes[1] == -signal.SIGKILL
    code = 128 - codes[0] if codes[0] < 0 else codes[0]  # as JAX ends it, or by itself
    assert _explained(code, peers.kept(tmp_path / "0")) == 0


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["a user", "Slurm", "Open MPI"])
def test_a_port_in_use_is_named_by_the_first_process(cluster):
    """Where JAX takes the port from the number of the job, too."""
    with socket.socket() as taken:
        given, lowest = "None, None, None", 2**16 - 2**12
        port = next(port for port in range(lowest, 2**16) if is_bound(taken, port))
        taken.listen()
        variables = {}
        if cluster == "Slurm":
            variables |= SLURM | {"SLURM_NTASKS": "2", "SLURM_JOB_ID": str(port - lowest)}
        elif cluster == "Open MPI":
            of_job = {"OMPI_MCA_orte_hnp_uri": f"{(port - lowest) * 2**12}.0;tcp://127.0.0.1:34911"}
            variables |= of_job | {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")}
            variables |= {"OMPI_COMM_WORLD_SIZE": "2"}
        else:
            given = f"'127.0.0.1:{port}', 2, 0"
        script = f"from plimsoll.training import distributed\ndistributed.join({given})"
        environment = os.environ | variables | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"plimsoll.errors.RunError: port {port} of "), done
    assert "is in use on this machine, where process 0 was to listen at it: " in said
    assert ("JAX_COORDINATOR_PORT" in said) == (cluster != "a user")


def is_bound(one, port):
    try:
        one.bind(("", port))
    except OSError:
        return False
    return True
