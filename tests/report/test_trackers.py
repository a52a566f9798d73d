import struct
import sys
from types import SimpleNamespace

import pytest

from plimsoll.errors import PlimsollError
from plimsoll.report.trackers import TRACKERS, Tracked, open_tracker, require_tracker

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


def test_wandb_that_refuses_to_start_is_one_paragraph_with_the_way_out(tmp_path, monkeypatch):
    class Refused(Exception):
        pass

    def init(**_):
        raise Refused("No API key configured.")

    fake = SimpleNamespace(init=init, Error=Refused, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(PlimsollError, match=r"configured\. Run `wandb login` first, or set WANDB_MODE"):
        open_tracker("wandb", tracked(tmp_path))


def test_tensorboard_says_a_full_disk_and_waits_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorboardX.record_writer.open_file", lambda _: open("/dev/full", "wb"))  # noqa: SIM115
    tracker = open_tracker("tensorboard", tracked(tmp_path))
    with pytest.raises(OSError, match="No space left"):
        tracker.log(2, {f"loss {n}": 1.0 for n in range(500)})
    tracker.close()
