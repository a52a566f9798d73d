"""What a trained model is used for. These functions run in a process that imports JAX."""

import numpy as np


def evaluate(trained, request):
    """Returns the means over the held-out set, and the mean absolute error by frequency."""
    errors = _errors(trained)
    by_frequency = {f"{low} to {low + 1} Hz": float(np.mean(errors[low])) for low in sorted(errors)}
    return trained.means() | {"error_by_frequency": by_frequency}


def text(answer):
    """Returns what `plimsoll evaluate` prints without --json."""
    rows = [f"  {band:<12}{error:8.4f}" for band, error in answer["error_by_frequency"].items()]
    return "\n".join([f"{answer['run']} at step {answer['step']:,}: mean error in Hz", *rows])


def shown(trained):
    """Returns the exhibits of a report: here one table."""
    rows = [[f"{low} to {low + 1} Hz", f"{np.mean(errors):.3f}"] for low, errors in sorted(_errors(trained).items())]
    caption = f"Mean error on held-out waves, by the checkpoint of step {trained.step:,}."
    return [
        {
            "kind": "table",
            "title": "How well it reads frequencies",
            "caption": caption,
            "header": ["frequency", "error, Hz"],
            "rows": rows,
        }
    ]


def _errors(trained):
    waves = trained.recipe.origin
    held_out = waves.validation_data()
    read = waves.predicted(trained.params()["trainable"], held_out["samples"])
    errors = np.abs(np.asarray(read) - held_out["frequency"])
    bands = held_out["frequency"].astype(int)
    return {low: errors[bands == low] for low in set(bands.tolist())}
