"""Destinations for metrics besides `metrics.jsonl`: TensorBoard, Weights & Biases, Trackio, MLflow.

    tracker = open_tracker("wandb", Tracked(folder=folder, name="lc-1", config=recipe_values))
    tracker.log(20, {"loss": 3.2})
    tracker.close()

Each package is imported only by its own tracker, because its memory counts against the budget. Measured resident
memory on top of NumPy: tensorboardX 2.6.5 takes 6 MiB (with protobuf, without torch and TensorFlow),
wandb 0.31.0 takes 40 MiB, and starts another process.

A resumed run keeps its identity: a service's id is saved in the run folder. TensorBoard gets the next step's
number, so that it hides what a killed process wrote after the checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.errors import PlimsollError

PROJECT = "plimsoll"


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """Run that a tracker is started for."""

    folder: Path
    """The run's folder, which holds event files and ids."""
    name: str
    """Name of the run in the service."""
    config: Mapping[str, Any]
    """The recipe's values, which must be serialisable as JSON."""
    start_step: int = 0
    """Steps taken before; 0 for a new run."""

    def read_id(self, service: str) -> str | None:
        """Returns the id of the run in a service; None for a new run."""
        file = self.folder / f"{service}-id.txt"
        return file.read_text().strip() if file.exists() else None

    def write_id(self, service: str, run_id: str) -> None:
        (self.folder / f"{service}-id.txt").write_text(run_id + "\n")


@dataclass(frozen=True)
class Tracker:
    """Destination of a run's metrics, by functions of its package."""

    name: str
    log: Callable[[int, Mapping[str, float]], object]
    """Sends the values of a step."""
    close: Callable[[], object]
    """Ends the run in the service."""


def open_tracker(name: str, run: Tracked) -> Tracker | TensorBoard:
    """Starts or resumes the tracker of a run. `name` is a key of `TRACKERS`."""
    return TRACKERS[name](run)


GUIDE_SCALARS = {"loss": "Loss/train", "tokens_per_second": "Throughput/tokens_per_sec"}
"""Names of the same values in the published guide of `longcontext`, written in addition to ours."""
ALLOCATED = "Memory/allocated_gb"
"""Name in that guide of the memory in use, in units of 10^9 bytes: the device's if there is one, else resident."""
FLUSH_SECONDS = 10
"""Time between flushes: most that a kill loses of the events. metrics.jsonl loses nothing."""


class TensorBoard:
    """Event files in the run folder, for `tensorboard --logdir runs/`.

    They are written in the training loop's own thread. `SummaryWriter` of tensorboardX has a thread and a queue of ten:
    on a full disk, or if the clock is set back by weeks, that thread dies, and the eleventh value blocks for ever
    (notes, "Torture"). Here such an error is raised from `log`, and nothing blocks.
    """

    name = "tensorboard"

    def __init__(self, run: Tracked) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import text

        # Importing the protocol buffers creates their classes at run time.
        self._messages: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        # The time in the name has a resolution of seconds; a restart may be faster, so it has the process's number too.
        self._writer = EventsWriter(str(run.folder / "events"), f".{os.getpid()}")
        self._flushed = time.monotonic()
        if run.start_step:  # hides what a killed process wrote after the checkpoint
            log = self._messages.SessionLog
            self._write(run.start_step + 1, session_log=log(status=log.START))
        else:
            recipe = json.dumps(dict(run.config), indent=2, default=str)
            self._write(0, summary=text("recipe", f"```json\n{recipe}\n```"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the values of a step. Raises OSError if the file cannot be written."""
        from tensorboardX.summary import scalar

        named = {GUIDE_SCALARS[name]: value for name, value in values.items() if name in GUIDE_SCALARS}
        allocated = values.get("device_bytes", values.get("resident_bytes"))
        if allocated is not None:
            named[ALLOCATED] = allocated / 1e9
        row = self._messages.Event().summary
        for name, value in {**values, **named}.items():  # of one event: its checksums are computed in Python
            row.value.extend(scalar(name, value).value)
        self._write(step, summary=row)

    def _write(self, step: int, **content: Any) -> None:
        self._writer.write_event(self._messages.Event(wall_time=time.time(), step=step, **content))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Closes the file. Errors are ignored: `log` has raised them."""
        with contextlib.suppress(OSError):
            self._writer.close()


def _wandb(run: Tracked) -> Tracker:
    """Returns a tracker for wandb, with its variables: WANDB_MODE (`offline`, `disabled`), WANDB_PROJECT and others."""
    wandb = importlib.import_module("wandb")
    run_id = run.read_id("wandb") or uuid.uuid4().hex[:12]
    run.write_id("wandb", run_id)
    online = os.environ.get("WANDB_MODE", "online") == "online"
    try:
        started = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            dir=str(run.folder),
            config=dict(run.config),
            id=run_id,
            resume="allow" if online else None,  # offline there is no server to ask
            settings=wandb.Settings(console="off", silent=True),  # our output is ours, and in log.txt
        )
    except wandb.Error as error:
        raise PlimsollError(
            f"--tracker wandb cannot start: {str(error).rstrip('. ')}. Run `wandb login` first, or set "
            "WANDB_MODE=offline and send the run later with `wandb sync`"
        ) from error
    return Tracker("wandb", lambda step, values: started.log(dict(values), step=step), started.finish)


def _trackio(run: Tracked) -> Tracker:
    """Returns a tracker for trackio, local unless its own TRACKIO_DIR and TRACKIO_SPACE_ID say otherwise."""
    # The run itself, not trackio.log: that looks the run up per thread.
    started = importlib.import_module("trackio").init(
        project=PROJECT, name=run.name, config=dict(run.config), resume="allow"
    )
    return Tracker("trackio", lambda step, values: started.log(dict(values), step=step), started.finish)


def _mlflow(run: Tracked) -> Tracker:
    """Returns a tracker for MLflow, with its own variables: MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME."""
    mlflow = importlib.import_module("mlflow")
    mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    run_id = run.read_id("mlflow") if run.start_step else None
    if run_id is not None:
        mlflow.start_run(run_id=run_id)
    else:
        run.write_id("mlflow", mlflow.start_run(run_name=run.name).info.run_id)
        mlflow.log_params(dict(run.config))  # once: MLflow refuses a second value for a parameter
    return Tracker("mlflow", lambda step, values: mlflow.log_metrics(dict(values), step=step), mlflow.end_run)


def _none(run: Tracked) -> Tracker:
    return Tracker("none", lambda step, values: None, lambda: None)


TRACKERS: dict[str, Callable[[Tracked], Tracker | TensorBoard]] = {
    "tensorboard": TensorBoard,
    "wandb": _wandb,
    "trackio": _trackio,
    "mlflow": _mlflow,
    "none": _none,
}
PACKAGES = ("wandb", "trackio", "mlflow")
"""Trackers that need a package of the same name."""


def require_tracker(name: str) -> None:
    """Raises PlimsollError if the tracker is unknown or not installed. Called before anything is planned."""
    if name not in TRACKERS:
        raise PlimsollError(f"there is no tracker {name!r}: choose one of {', '.join(TRACKERS)}")
    if name in PACKAGES and importlib.util.find_spec(name) is None:
        raise PlimsollError(
            f"--tracker {name} needs the package {name}, which is not installed: `pip install {name}`, or leave"
            " --tracker out: metrics.jsonl and TensorBoard hold the same"
        )
