"""Destinations for metrics besides `metrics.jsonl`: TensorBoard, Weights & Biases, Trackio, MLflow.

    tracker = open_tracker("wandb", folder, run_name="lc-1", config=recipe_values)
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
from types import ModuleType
from typing import Any

from plimsoll.errors import PlimsollError

PROJECT = "plimsoll"


@dataclass(frozen=True)
class Tracker:
    """Destination of a run's metrics, by functions of its package."""

    name: str
    log: Callable[[int, Mapping[str, float]], object]
    """Sends the values of a step."""
    close: Callable[[], object]
    """Ends the run in the service."""


def open_tracker(
    name: str, folder: Path | str, *, run_name: str, config: Mapping[str, Any], start_step: int = 0
) -> Tracker | TensorBoard:
    """Starts or resumes the tracker of a run.

    Args:
        name: A key of `TRACKERS`.
        folder: The run's folder, which holds event files and ids.
        run_name: Name of the run in the service.
        config: The recipe's values, which must be serialisable as JSON.
        start_step: Steps taken before; 0 for a new run.
    """
    _require_known(name)
    return TRACKERS[name](Path(folder), run_name, config, start_step)


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

    name = "TensorBoard"

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import text

        # Importing the protocol buffers creates their classes at run time.
        self._messages: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        # The time in the name has a resolution of seconds; a restart may be faster, so it has the process's number too.
        self._writer = EventsWriter(str(folder / "events"), f".{os.getpid()}")
        self._flushed = time.monotonic()
        if start_step:  # hides what a killed process wrote after the checkpoint
            log = self._messages.SessionLog
            self._write(start_step + 1, session_log=log(status=log.START))
        else:
            recipe = json.dumps(dict(config), indent=2, default=str)
            self._write(0, summary=text("recipe", f"```json\n{recipe}\n```"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the values of a step. Raises OSError if the file cannot be written."""
        from tensorboardX.summary import scalar

        guide = {GUIDE_SCALARS[name]: value for name, value in values.items() if name in GUIDE_SCALARS}
        allocated = values.get("device_bytes", values.get("resident_bytes"))
        if allocated is not None:
            guide[ALLOCATED] = allocated / 1e9
        row = self._messages.Event().summary
        for name, value in {**values, **guide}.items():  # of one event: its checksums are computed in Python
            row.value.extend(scalar(name, value).value)
        self._write(step, summary=row)

    def _write(self, step: int, **content: Any) -> None:
        event = self._messages.Event(wall_time=time.time(), step=step, **content)
        try:
            self._writer.write_event(event)
            if time.monotonic() - self._flushed > FLUSH_SECONDS:
                self._writer.flush()
                self._flushed = time.monotonic()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file. Errors are ignored: `log` has raised them."""
        with contextlib.suppress(OSError):
            self._writer.close()


def _weights_and_biases(folder: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> Tracker:
    """Returns a tracker for wandb, with its variables: WANDB_MODE (`offline`, `disabled`), WANDB_PROJECT and others."""
    wandb = _import("wandb")
    online = os.environ.get("WANDB_MODE", "online") == "online"
    kept = folder / "wandb-id.txt"
    run_id = _read_id(kept)
    if run_id is None:
        run_id = uuid.uuid4().hex[:12]
        kept.write_text(run_id + "\n")
    try:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run_name,
            dir=str(folder),
            config=dict(config),
            id=run_id,
            resume="allow" if online else None,  # offline there is no server to ask
            settings=wandb.Settings(console="off", silent=True),  # our output is ours, and in log.txt
        )
    except wandb.Error as error:
        raise PlimsollError(
            f"--tracker wandb cannot start: {str(error).rstrip('. ')}. Run `wandb login` first, or set "
            "WANDB_MODE=offline and send the run later with `wandb sync`"
        ) from error
    return Tracker("WeightsAndBiases", lambda step, values: run.log(dict(values), step=step), run.finish)


def _trackio(folder: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> Tracker:
    """Returns a tracker for trackio, local unless its own TRACKIO_DIR and TRACKIO_SPACE_ID say otherwise."""
    # The run itself, not trackio.log: that looks the run up per thread.
    run = _import("trackio").init(project=PROJECT, name=run_name, config=dict(config), resume="allow")
    return Tracker("Trackio", lambda step, values: run.log(dict(values), step=step), run.finish)


def _mlflow(folder: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> Tracker:
    """Returns a tracker for MLflow, with its own variables: MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME."""
    mlflow = _import("mlflow")
    mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    kept = folder / "mlflow-id.txt"
    run_id = _read_id(kept) if start_step else None
    if run_id is not None:
        mlflow.start_run(run_id=run_id)
    else:
        run = mlflow.start_run(run_name=run_name)
        kept.write_text(run.info.run_id + "\n")
        mlflow.log_params(dict(config))  # once: MLflow refuses a second value for a parameter
    return Tracker("MLflow", lambda step, values: mlflow.log_metrics(dict(values), step=step), mlflow.end_run)


def _nothing(folder: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> Tracker:
    return Tracker("none", lambda step, values: None, lambda: None)


TRACKERS: dict[str, Callable[[Path, str, Mapping[str, Any], int], Tracker | TensorBoard]] = {
    "tensorboard": TensorBoard,
    "wandb": _weights_and_biases,
    "trackio": _trackio,
    "mlflow": _mlflow,
    "none": _nothing,
}


PACKAGES = ("wandb", "trackio", "mlflow")
"""Trackers that need a package of the same name."""


def require_tracker(name: str) -> None:
    """Raises PlimsollError if the tracker is unknown or not installed. Called before anything is planned."""
    _require_known(name)
    if name in PACKAGES and importlib.util.find_spec(name) is None:
        raise _not_installed(name, "it is not installed")


def _require_known(name: str) -> None:
    if name not in TRACKERS:
        raise PlimsollError(f"there is no tracker {name!r}: choose one of {', '.join(TRACKERS)}")


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _not_installed(module, str(error)) from error


def _not_installed(module: str, why: str) -> PlimsollError:
    return PlimsollError(
        f"--tracker {module} needs the package {module}, which cannot be imported here ({why}): `pip install"
        f" {module}`, or leave --tracker out: metrics.jsonl and TensorBoard hold the same"
    )


def _read_id(file: Path) -> str | None:
    """Returns the id of the run in a service, which is kept in the run folder; None for a new run."""
    return file.read_text().strip() or None if file.exists() else None
