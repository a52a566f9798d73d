"""Where metrics go besides `metrics.jsonl`: TensorBoard, Weights & Biases, Trackio, MLflow.

    tracker = open_tracker("wandb", folder, run_name="lc-1", config=recipe_values)
    tracker.log(20, {"loss": 3.2})
    tracker.close()

Each package is imported by its own tracker only, because the training process pays for it. Measured resident
memory beside NumPy: tensorboardX 2.6.5 takes 6 MiB (protobuf is in it; no torch and no TensorFlow),
wandb 0.31.0 takes 40 MiB, and a process of its own beside ours.

A run that continues keeps its identity: the id of a service is kept in the run folder, and TensorBoard is
told which step comes next, so that it hides what the killed process wrote after the checkpoint.
"""

import importlib
import importlib.util
import json
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from plimsoll.errors import PlimsollError
from plimsoll.report.event_file import EventFile, messages

PROJECT = "plimsoll"


class Tracker(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


def open_tracker(
    name: str, folder: Path | str, *, run_name: str, config: Mapping[str, Any], start_step: int = 0
) -> Tracker:
    """`start_step` steps are done already; `config` is the recipe, and its values fit into JSON."""
    _require_known(name)
    return TRACKERS[name](Path(folder), run_name, config, start_step)


class Nothing:
    """`--tracker none`."""

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> None:
        pass

    def log(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


GUIDE_SCALARS = {"loss": "Loss/train", "tokens_per_second": "Throughput/tokens_per_sec"}
"""Names under which the published guide of `longcontext` has them, written beside ours."""
ALLOCATED = "Memory/allocated_gb"
"""Also the guide's: 10^9 bytes, of the device where there is one, else resident."""


class TensorBoard:
    """Event files in the run folder, for `tensorboard --logdir runs/`."""

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> None:
        from tensorboardX.summary import text

        self._file = EventFile(folder)
        if start_step:  # hides what a killed process wrote after the checkpoint
            log = messages().SessionLog
            self._file.write(start_step + 1, session_log=log(status=log.START))
        else:
            recipe = json.dumps(dict(config), indent=2, default=str)
            self._file.write(0, summary=text("recipe", f"```json\n{recipe}\n```"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        theirs = {GUIDE_SCALARS[name]: value for name, value in values.items() if name in GUIDE_SCALARS}
        held = values.get("device_bytes", values.get("resident_bytes"))
        if held is not None:
            theirs[ALLOCATED] = held / 1e9
        from tensorboardX.summary import scalar

        for name, value in {**values, **theirs}.items():
            self._file.write(step, summary=scalar(name, value))

    def close(self) -> None:
        self._file.close()


class WeightsAndBiases:
    """Honours WANDB_MODE (`offline`, `disabled`), WANDB_PROJECT and the other variables of wandb."""

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> None:
        wandb = _import("wandb")
        online = os.environ.get("WANDB_MODE", "online") == "online"
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=run_name,
                dir=str(folder),
                config=dict(config),
                id=_kept_id(folder, "wandb", lambda: uuid.uuid4().hex[:12]),
                resume="allow" if online else None,  # offline there is no server to ask
                settings=wandb.Settings(console="off", silent=True),  # our output is ours, and in log.txt
            )
        except wandb.Error as error:
            raise PlimsollError(
                f"--tracker wandb cannot start: {str(error).rstrip('. ')}. Run `wandb login` first, or set "
                "WANDB_MODE=offline and send the run later with `wandb sync`"
            ) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """Local by default; TRACKIO_DIR and TRACKIO_SPACE_ID are trackio's own."""

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> None:
        trackio = _import("trackio")
        # The run itself, not trackio.log: that looks the run up per thread.
        self._run = trackio.init(project=PROJECT, name=run_name, config=dict(config), resume="allow")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """Honours MLFLOW_TRACKING_URI (else MLflow's own default holds) and MLFLOW_EXPERIMENT_NAME."""

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> None:
        self._module = mlflow = _import("mlflow")
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        known = _read_id(folder, "mlflow") if start_step else None
        if known is not None:
            mlflow.start_run(run_id=known)
            return
        run = mlflow.start_run(run_name=run_name)
        _write_id(folder, "mlflow", run.info.run_id)
        mlflow.log_params(dict(config))  # once: MLflow refuses a second value for a parameter

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._module.log_metrics(dict(values), step=step)

    def close(self) -> None:
        self._module.end_run()


TRACKERS: dict[str, Callable[[Path, str, Mapping[str, Any], int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
    "mlflow": MLflow,
    "none": Nothing,
}


INSTALL = {"wandb": "plimsoll-jax[wandb]", "trackio": "trackio", "mlflow": "mlflow"}


def require_tracker(name: str) -> None:
    """Before anything is planned: a tracker that is not there is refused now."""
    _require_known(name)
    if name in INSTALL and importlib.util.find_spec(name) is None:
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
        f" '{INSTALL[module]}'`, or leave --tracker out: metrics.jsonl and TensorBoard hold the same"
    )


def _id_file(folder: Path, service: str) -> Path:
    return folder / f"{service}-id.txt"


def _read_id(folder: Path, service: str) -> str | None:
    file = _id_file(folder, service)
    return file.read_text().strip() or None if file.exists() else None


def _write_id(folder: Path, service: str, value: str) -> None:
    _id_file(folder, service).write_text(value + "\n")


def _kept_id(folder: Path, service: str, make: Callable[[], str]) -> str:
    known = _read_id(folder, service)
    if known is None:
        known = make()
        _write_id(folder, service, known)
    return known
