"""What every test shares: a CPU, strict dtype promotion where our arrays are, and the golden files if they are here."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("exact", deadline=None)  # no test depends on the clock of a machine that others use
settings.load_profile("exact")

os.environ["PLIMSOLL_CALIBRATION"] = "off"  # but where it is the subject: what one test measured is none of another's
os.environ["JAX_PLATFORMS"] = "cpu"  # before anything imports JAX, and for the processes that tests start

STRICT = {"levers", "models", "training", "contracts", "optimizers"}
"""Folders whose tests run our own arrays: a silent upcast there is a memory bug. Elsewhere a module says
`STRICT = True`."""


@pytest.fixture(autouse=True, scope="module")  # before a module's own fixtures, which compile too
def _strict_promotion(request):
    if not STRICT & set(request.path.relative_to(Path(__file__).parent).parts) and not getattr(
        request.module, "STRICT", False
    ):
        yield
        return
    import jax

    # LLVM's dearest passes are half of a small compile, and change neither buffers nor the order of operations.
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture(scope="session")
def shared():
    """The folder of golden files and specifications: $PLIMSOLL_SHARED, else ../shared."""
    named = os.environ.get("PLIMSOLL_SHARED")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"the shared files are not at {folder}; PLIMSOLL_SHARED names another place")
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Real runs of a tiny recipe, prepared and planned once by each worker."""
    from small_runs import Runs

    return Runs(tmp_path_factory.mktemp("runs"))
