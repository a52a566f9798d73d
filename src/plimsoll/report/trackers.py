"""Experiment trackers that receive metrics beside `metrics.jsonl`: TensorBoard, Weights & Biases, Trackio, MLflow.

    tracker = open_tracker("wandb", Tracked(folder=folder, name="lc-1", config=recipe_values))
    tracker.log(20, {"loss": 3.2})
    tracker.close()

Each tracker imports only its own package, because imports count against the memory budget. Measured resident memory
beyond NumPy: tensorboardX 2.6.5 takes 6 MiB (with protobuf, without torch and TensorFlow). wandb 0.31.0 takes 40 MiB,
and starts another process.

A resumed run stays the same run in a service: Trackio finds it by name, others by the run's id in the run folder.
TensorBoard is told the next step, so that it hides values that a killed process wrote after the checkpoint.
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
"""Name of the project or experiment in a service."""


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """Description of a run for its trackers."""

    folder: Path
    """Folder of the run, for event files and the ids of services."""
    name: str
    """Name of the run in the service."""
    config: Mapping[str, Any]
    """Recipe and plan, serializable as JSON."""
    start_step: int = 0
    """Step that the run resumes from; 0 for a new run."""

    def read_id(self, service: str) -> str | None:
        """Returns the id of the run in a service; None for a new run."""
        file = self.folder / f"{service}-id.txt"
        return file.read_text().strip() if file.exists() else None

    def write_id(self, service: str, run_id: str) -> None:
        """Saves the id of the run in a service."""
        (self.folder / f"{service}-id.txt").write_text(run_id + "\n")


@dataclass(frozen=True)
class Tracker:
    """Connection to a service that receives a run's metrics."""

    name: str
    log: Callable[[int, Mapping[str, float]], object]
    """Function that sends the metrics of a step."""
    close: Callable[[], object]
    """Function that ends the run in the service."""


def open_tracker(name: str, run: Tracked) -> Tracker | TensorBoard:
    """Starts or resumes a tracker for a run.

    Args:
        name: Key of `TRACKERS`.
        run: The run.
    """
    return TRACKERS[name](run)


GUIDE_SCALARS = {"loss": "Loss/train", "tokens_per_second": "Throughput/tokens_per_sec"}
"""Map from a metric to its name in the published guide of the recipe `longcontext`. TensorBoard gets both names."""
ALLOCATED = "Memory/allocated_gb"
"""TensorBoard name of the memory in use in units of 10^9 bytes: device memory on an accelerator, else the resident set.
The guide of the recipe `longcontext` uses this name."""
FLUSH_SECONDS = 10
"""Seconds between flushes of TensorBoard's events. A kill loses later events, but no row of metrics.jsonl."""


class TensorBoard:
    """TensorBoard event files in the run folder, for `tensorboard --logdir runs/`.

    Events are written in the training loop's own thread. tensorboardX's `SummaryWriter` has a thread and a queue of ten
    events. On a full disk, or if the clock is set back by weeks, that thread dies, and the eleventh event blocks
    forever (notes, "Torture"). Here `log` raises the error instead.
    """

    name = "tensorboard"

    def __init__(self, run: Tracked) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import text

        # Protocol buffer classes are created at run time, so a type checker does not know them.
        self._messages: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        # The file's name has the time in seconds. The process id distinguishes a restart within the same second.
        self._writer = EventsWriter(str(run.folder / "events"), f".{os.getpid()}")
        self._flushed = time.monotonic()
        if run.start_step:  # hides the events that a killed process wrote after the checkpoint
            log = self._messages.SessionLog
            self._write(run.start_step + 1, session_log=log(status=log.START))
        else:
            recipe = json.dumps(dict(run.config), indent=2, default=str)
            self._write(0, summary=text("recipe", f"```json\n{recipe}\n```"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the metrics of a step. Raises OSError if the file cannot be written."""
        from tensorboardX.summary import scalar

        named = {GUIDE_SCALARS[name]: value for name, value in values.items() if name in GUIDE_SCALARS}
        allocated = values.get("device_bytes", values.get("resident_bytes"))
        if allocated is not None:
            named[ALLOCATED] = allocated / 1e9
        row = self._messages.Event().summary
        for name, value in {**values, **named}.items():  # all in one event, whose checksums are slow Python code
            row.value.extend(scalar(name, value).value)
        self._write(step, summary=row)

    def _write(self, step: int, **content: Any) -> None:
        self._writer.write_event(self._messages.Event(wall_time=time.time(), step=step, **content))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Closes the file. Ignores errors of the file system, which `log` has raised before."""
        with contextlib.suppress(OSError):
            self._writer.close()


def _wandb(run: Tracked) -> Tracker:
    """Starts a wandb tracker. wandb's own environment variables apply, like WANDB_MODE and WANDB_PROJECT."""
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
            resume="allow" if online else None,  # resuming needs the server
            settings=wandb.Settings(console="off", silent=True),  # messages are in log.txt already
        )
    except wandb.Error as error:
        raise PlimsollError(
            f"--tracker wandb cannot start: {str(error).rstrip('. ')}. Run `wandb login` first, or set "
            "WANDB_MODE=offline and send the run later with `wandb sync`"
        ) from error
    return Tracker("wandb", lambda step, values: started.log(dict(values), step=step), started.finish)


def _trackio(run: Tracked) -> Tracker:
    """Starts a trackio tracker. It is local unless trackio's variables TRACKIO_DIR and TRACKIO_SPACE_ID are set."""
    # Log through the run object: `trackio.log` looks up the run of the calling thread.
    started = importlib.import_module("trackio").init(
        project=PROJECT, name=run.name, config=dict(run.config), resume="allow"
    )
    return Tracker("trackio", lambda step, values: started.log(dict(values), step=step), started.finish)


def _mlflow(run: Tracked) -> Tracker:
    """Starts an MLflow tracker. MLflow's variables MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME apply."""
    mlflow = importlib.import_module("mlflow")
    mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    run_id = run.read_id("mlflow") if run.start_step else None
    if run_id is not None:
        mlflow.start_run(run_id=run_id)
    else:
        run.write_id("mlflow", mlflow.start_run(run_name=run.name).info.run_id)
        mlflow.log_params(dict(run.config))  # only for a new run: MLflow refuses a second value for a parameter
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
"""Map from a tracker's name to the function that starts the tracker."""
PACKAGES = ("wandb", "trackio", "mlflow")
"""Trackers that need an optional package of the same name."""


def require_tracker(name: str) -> None:
    """Raises PlimsollError if a tracker is unknown or not installed. Call it before planning."""
    if name not in TRACKERS:
        raise PlimsollError(f"there is no tracker {name!r}: choose one of {', '.join(TRACKERS)}")
    if name in PACKAGES and importlib.util.find_spec(name) is None:
        raise PlimsollError(
            f"--tracker {name} needs the package {name}, which is not installed: `pip install {name}`, or leave"
            " --tracker out: metrics.jsonl and TensorBoard hold the same"
        )
