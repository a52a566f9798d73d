import json
import math
import os
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from plimsoll.errors import PlimsollError
from plimsoll.report.trackers import TRACKERS, Tracked, open_tracker, require_tracker
from report_examples import SOURCES

CONFIG = {"steps": 10, "optimizer": {"learning_rate": 3e-4}}


def tracked(folder, start_step=0):
    return Tracked(folder=folder, name="one", config=CONFIG, start_step=start_step)


def event_files(folder):
    return sorted(folder.glob("events.out.tfevents.*"))


def events(path):
    """Every record of an event file: length, checksum, bytes, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        found.append(Event.FromString(data[at + 12 : at + 12 + length]))
        at += length + 16
    return found


def scalars(path):
    return [
        (event.step, value.tag, value.simple_value)
        for event in events(path)
        for value in event.summary.value
        if value.WhichOneof("value") == "simple_value"
    ]


def test_tensorboard_events_can_be_read_back(tmp_path):
    tracker = open_tracker("tensorboard", tracked(tmp_path))
    tracker.log(10, {"loss": 2.5, "tokens_per_second": 4096.0})
    tracker.log(20, {"validation_loss": 1.5})
    tracker.close()
    (file,) = event_files(tmp_path)
    ours, theirs = [(10, "loss", 2.5), (10, "tokens_per_second", 4096.0)], [(20, "validation_loss", 1.5)]
    guides = [(10, "Loss/train", 2.5), (10, "Throughput/tokens_per_sec", 4096.0)]
    assert scalars(file) == ours + guides + theirs
    texts = [value.tensor.string_val for event in events(file) for value in event.summary.value]
    assert any(b'"learning_rate": 0.0003' in text[0] for text in texts if text)


def test_tensorboard_is_not_spared_a_loss_that_is_not_a_number(tmp_path):
    tracker = open_tracker("tensorboard", tracked(tmp_path))
    tracker.log(10, {"loss": math.nan})
    tracker.close()
    (ours, theirs) = scalars(event_files(tmp_path)[0])
    for step, _, loss in (ours, theirs):
        assert step == 10
        assert math.isnan(loss)


@pytest.mark.parametrize(("device", "gigabytes"), [({}, 2.0), ({"device_bytes": 5e8}, 0.5)])
def test_tensorboard_has_the_memory_under_the_name_of_the_guide(tmp_path, device, gigabytes):
    tracker = open_tracker("tensorboard", tracked(tmp_path))
    tracker.log(10, {"resident_bytes": 2e9, **device})
    tracker.close()
    found = {name: value for _, name, value in scalars(event_files(tmp_path)[0])}
    assert found == {"resident_bytes": 2e9, **device, "Memory/allocated_gb": gigabytes}


def test_tensorboard_hides_what_a_killed_process_wrote_after_the_checkpoint(tmp_path):
    for start_step in (0, 15):
        tracker = open_tracker("tensorboard", tracked(tmp_path, start_step=start_step))
        tracker.log(20, {"loss": 1.5})
        tracker.close()
        if start_step == 0:
            (first,) = event_files(tmp_path)
            first.rename(first.with_name("events.out.tfevents.0.first"))
    resumed = event_files(tmp_path)[-1]
    purge = [event for event in events(resumed) if event.HasField("session_log")]
    assert [event.step for event in purge] == [16]


def test_tensorboard_brings_no_other_framework(tmp_path):
    code = (
        "import pathlib, sys; from plimsoll.report.trackers import Tracked, open_tracker;"
        "before = 'tensorboardX' in sys.modules;"
        "open_tracker('tensorboard', Tracked(folder=pathlib.Path(sys.argv[1]), name='x', config={})).close();"
        "sys.exit(before or bool({'torch', 'tensorflow', 'jax', 'matplotlib', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ | {"PYTHONPATH": SOURCES})
    assert done.returncode == 0


def test_no_tracker_writes_nothing(tmp_path):
    tracker = open_tracker("none", tracked(tmp_path))
    tracker.log(1, {"loss": 1.0})
    tracker.close()
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker_is_refused_with_those_that_exist():
    with pytest.raises(PlimsollError) as refused:
        require_tracker("wanbd")
    message = str(refused.value)
    assert "'wanbd'" in message
    assert all(name in message for name in TRACKERS)


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_a_missing_package_is_refused_with_how_to_install_it(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PlimsollError) as refused:
        require_tracker(name)
    assert f"pip install {name}" in str(refused.value)
    assert "\n" not in str(refused.value)


class Recorder:
    """Takes any call, and remembers it as (name, arguments, keywords)."""

    def __init__(self, **answers):
        self.calls = []
        self._answers = answers

    def __getattr__(self, name):
        def call(*args, **keywords):
            self.calls.append((name, args, keywords))
            return self._answers.get(name)

        return call


def test_trackio_is_handed_the_run_and_its_numbers(tmp_path, monkeypatch):
    run = Recorder()
    trackio = Recorder(init=run)
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    tracker = open_tracker("trackio", tracked(tmp_path))
    tracker.log(10, {"loss": 2.5})
    tracker.close()
    expected = {"project": "plimsoll", "name": "one", "config": CONFIG, "resume": "allow"}
    assert trackio.calls == [("init", (), expected)]
    assert run.calls == [("log", ({"loss": 2.5},), {"step": 10}), ("finish", (), {})]


def test_mlflow_continues_the_run_it_started(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    mlflow = Recorder(start_run=SimpleNamespace(info=SimpleNamespace(run_id="a1b2")))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    tracker = open_tracker("mlflow", tracked(tmp_path))
    tracker.log(10, {"loss": 2.5})
    tracker.close()
    assert mlflow.calls == [
        ("set_experiment", ("plimsoll",), {}),
        ("start_run", (), {"run_name": "one"}),
        ("log_params", (CONFIG,), {}),
        ("log_metrics", ({"loss": 2.5},), {"step": 10}),
        ("end_run", (), {}),
    ]
    mlflow.calls.clear()
    open_tracker("mlflow", tracked(tmp_path, start_step=10))
    assert mlflow.calls == [("set_experiment", ("plimsoll",), {}), ("start_run", (), {"run_id": "a1b2"})]


def wandb_offline(folder, *, start_step):
    """In a process of its own: wandb leaves threads, environment variables and handlers behind."""
    code = (
        "import sys, json, pathlib; from plimsoll.report.trackers import Tracked, open_tracker;"
        "run = Tracked(folder=pathlib.Path(sys.argv[1]), name='one', config=json.loads(sys.argv[2]),"
        " start_step=int(sys.argv[3]));"
        "tracker = open_tracker('wandb', run);"
        "tracker.log(int(sys.argv[3]) + 10, {'loss': 2.5}); tracker.close()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(folder), json.dumps(CONFIG), str(start_step)],
        env=os.environ | {"PYTHONPATH": SOURCES, "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_wandb_offline_writes_its_run_and_keeps_its_id(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'plimsoll-jax[wandb]'")
    ids = []
    for start_step in (0, 10):
        done = wandb_offline(tmp_path, start_step=start_step)
        assert done.returncode == 0, done.stderr
        ids.append((tmp_path / "wandb-id.txt").read_text().strip())
    assert ids[0] == ids[1]
    written = list(tmp_path.glob(f"wandb/offline-run-*-{ids[0]}/run-{ids[0]}.wandb"))
    assert written
    content = b"".join(file.read_bytes() for file in written)
    assert b"loss" in content
    assert b"learning_rate" in content


def test_wandb_that_refuses_to_start_is_one_paragraph_with_the_way_out(tmp_path, monkeypatch):
    class Refused(Exception):
        pass

    def init(**_):
        raise Refused("No API key configured.")

    fake = SimpleNamespace(init=init, Error=Refused, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(PlimsollError, match=r"configured\. Run `wandb login` first, or set WANDB_MODE"):
        open_tracker("wandb", tracked(tmp_path))


def test_tensorboard_goes_on_where_the_clock_is_put_back_by_years(tmp_path, monkeypatch):
    tracker = open_tracker("tensorboard", tracked(tmp_path))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 1e9)
    for step in range(1, 40):  # more than tensorboardX's queue holds, whose thread would be dead
        tracker.log(step, {"loss": 1.0})
    tracker.close()
    (file,) = event_files(tmp_path)
    assert sum(event.HasField("summary") for event in events(file)) == 1 + 39


def test_tensorboard_says_a_full_disk_and_waits_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorboardX.record_writer.open_file", lambda _: open("/dev/full", "wb"))  # noqa: SIM115
    tracker = open_tracker("tensorboard", tracked(tmp_path))
    with pytest.raises(OSError, match="No space left"):
        tracker.log(2, {f"loss {n}": 1.0 for n in range(500)})
    tracker.close()
