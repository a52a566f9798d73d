"""What every test shares: a CPU, a cache of the test run's own, strict dtype promotion where our arrays are, the golden
files if they are here; and which tests `make test` leaves to `make test-all`."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from collected import COLLECTED
from once import base_folder, take_shared_folder
from plain_code import PLAIN_CODE

# The same examples each time, so that a failure is the change's; no deadline: others use the machine's clock, too.
settings.register_profile("usual", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=100, derandomize=True)  # `make test-all`
settings.register_profile("anew", deadline=None, max_examples=200)  # `make test-by-hand`: examples of the moment
settings.load_profile("usual")

os.environ["JAX_PLATFORMS"] = "cpu"  # before anything imports JAX, and for the processes that tests start
KEPT, KEPT_BYTES = ("compiled", "answers"), 2**30
"""Parts of .pytest_cache/d/plimsoll that the next test run has, too, and the largest size of each."""
FEWER_PASSES = "JAX_DISABLE_MOST_OPTIMIZATIONS"
"""Variable of the environment that JAX reads, in processes that tests start, too: LLVM leaves its dearest passes out.
By hand, and in `make pages`, steps are compiled as a user's are."""
STRICT = {"levers", "models", "training", "contracts", "optimizers"}
"""Folders whose tests run our own arrays: a silent upcast there is a memory bug. Elsewhere a module says
`STRICT = True`."""


QUICK = (
    *("data/chat", "data/hdf5", "docs", "inference", "planner/hlo", "planner/test_host", "planner/test_bytes"),
    *("processes", "report", "files", "recipes/test_", "test_"),
)
"""Folders and modules of `make test-quick`: there a hundred tests take a second or two."""
QUICK_MODULES = ("cli/test_help.py", "training/test_loop.py", "training/test_schedule.py")


def compiles_plainly(config):
    """Whether these are the tests of `make test-quick`, `make test` or `make test-all`, and not those by hand."""
    chosen = config.getoption("-m")
    return "slow" in chosen or chosen == "quick"


def pytest_configure(config):
    plain = compiles_plainly(config)
    if plain and PLAIN_CODE not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {PLAIN_CODE}".strip()  # until JAX has read it
    if plain:
        # LLVM's dearest passes are half of a compile, and change neither buffers nor the order of operations.
        os.environ[FEWER_PASSES] = "true"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in its background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    is_first_process = hasattr(config, "cache") and not hasattr(config, "workerinput")
    if is_first_process and take_shared_folder(config.cache.mkdir("shared")):
        empty_but_for_answers(config.cache.mkdir("plimsoll"))


def empty_but_for_answers(cache: Path) -> None:
    """Removes what an earlier test run left in its cache, but for what compilers made and answered."""
    for part in cache.iterdir():
        if part.name in KEPT and sum(file.stat().st_size for file in part.iterdir()) <= KEPT_BYTES:
            continue
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink()


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at marks
def pytest_collection_modifyitems(config, items):
    """Adds `slow` to what `by_hand`, `slow_cases` and `slow_except` name, and `quick` to what is quick and not slow."""
    tests = Path(__file__).parent
    for item in items:
        if item.get_closest_marker("by_hand") is not None:
            item.add_marker("slow")
        some, others = (item.get_closest_marker(name) for name in ("slow_cases", "slow_except"))
        if some is not None and item.callspec.id in some.args:
            item.add_marker("slow")
        if others is not None and item.callspec.id not in others.args:
            item.add_marker("slow")
        module = item.path.relative_to(tests).as_posix()
        if module.startswith((*QUICK, *QUICK_MODULES)) and item.get_closest_marker("slow") is None:
            item.add_marker("quick")
    config.stash[COLLECTED] = list(items)


@pytest.fixture(autouse=True, scope="session")
def _cache_of_this_test_run(tmp_path_factory, request):
    """A cache of compiled steps and answers, shared by the processes of this test run, and nothing of the user's.

    Both are kept for the next test run, those of the processes that tests start included. The key of a compiled step
    is the program itself, so that changed code misses it, and the path of the cache, which therefore stays the same;
    that of an answer has a digest of our source.
    """
    import jax

    jax.devices()  # reads the options
    if others := os.environ.pop("XLA_FLAGS", "").replace(PLAIN_CODE or " ", " ").strip():
        os.environ["XLA_FLAGS"] = others
    stays = hasattr(request.config, "cache")
    folder = request.config.cache.mkdir("plimsoll") if stays else base_folder(tmp_path_factory) / "cache"
    os.environ["PLIMSOLL_CACHE"] = str(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    # Of single operations, too: reading one takes half the CPU time of compiling it, and processes compile the same.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture(autouse=True, scope="module")  # before a module's own fixtures, which compile too
def _strict_promotion(request):
    if not STRICT & set(request.path.relative_to(Path(__file__).parent).parts) and not getattr(
        request.module, "STRICT", False
    ):
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)  # in `make test-by-hand`, too
    with jax.numpy_dtype_promotion("strict"):
        yield
    jax.config.update("jax_disable_most_optimizations", compiles_plainly(request.config))


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
    """Real runs of a tiny recipe, prepared and planned once for all processes of this test run."""
    from small_runs import Runs

    made = Runs(tmp_path_factory)
    made.prepared()  # here, and not in the test that happens to be the first
    return made
