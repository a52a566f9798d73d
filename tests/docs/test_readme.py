"""README.md is enough to begin with: its Python runs as printed, and scripts are written from it alone."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
(SNIPPET,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
LEFT_OUT = r"^```.*?^```|^\|[^\n]*|<!--.*?-->|\((?:http|docs|CONT)\S+\)|`[^`\n]+`"
"""Code, tables, comments and addresses."""

YOURS = """
import jax, jax.numpy as jnp, numpy as np
x = np.random.default_rng(0).normal(size=(2048, 8)).astype("float32")
data, held_out, batch = ({"x": part, "y": np.sin(part).sum(1)} for part in (x[:1920], x[1920:], x[:64]))
def init(key):
    return {"in": jax.random.normal(key, (8, 64)) / 3, "out": jnp.zeros(64)}
def loss(params, batch):
    return jnp.mean((jnp.tanh(batch["x"] @ params["in"]) @ params["out"] - batch["y"]) ** 2)
""".strip()
"""What the snippet of README.md leaves to the reader."""

BOTH = """
import equinox as eqx, jax, jax.numpy as jnp, numpy as np, optax, pandas, plimsoll
from flax import nnx
x = np.random.default_rng(0).normal(size=(2048, 8)).astype("float32")
data, held_out, batch = ({"x": part, "y": np.sin(part).sum(1)[:, None]} for part in (x[:1920], x[1920:], x[:64]))
class Net(nnx.Sequential):
    def __init__(self, rngs):
        super().__init__(nnx.Linear(8, 64, rngs=rngs), jnp.tanh, nnx.Linear(64, 1, rngs=rngs))
---
mlp = lambda key: eqx.nn.MLP(8, 1, 64, 1, key=key)
rest = eqx.filter(mlp(jax.random.key(0)), eqx.is_inexact_array, inverse=True)
def fit(name, init, model):
    loss = lambda params, batch: jnp.mean((model(params)(batch["x"]) - batch["y"]) ** 2)
    plan = plimsoll.plan(loss, jax.eval_shape(init, jax.random.key(0)), batch,
                         optimizer=optax.adamw(1e-2), reduction="mean", memory="1GiB")
    for steps in (100, 200):
        run = plan.train(init, data, validation_data=held_out, steps=steps, run=f"runs/{name}")
    pandas.DataFrame(run.metrics()).plot("step", "loss", title=name)
    return run.evaluate()["loss"]
---
fit("nnx", lambda key: nnx.state(Net(nnx.Rngs(key)), nnx.Param),
    lambda params: nnx.merge(nnx.graphdef(nnx.eval_shape(lambda: Net(nnx.Rngs(0)))), params))
---
fit("equinox", lambda key: eqx.filter(mlp(key), eqx.is_inexact_array),
    lambda params: jax.vmap(eqx.combine(params, rest)))
""".strip()
"""Trains a Flax NNX and an Equinox module inside a budget, continues, evaluates and plots each; in cells."""


def test_it_stays_short():
    """Two minutes at 275 words each, up to the list of pages."""
    prose = re.sub(LEFT_OUT, "", README[: README.index("## Where to read on")], flags=re.DOTALL | re.MULTILINE)
    assert 100 < len(prose.split()) < 550
    assert len(README.splitlines()) < 110


def test_every_page_that_it_names_is_there():
    named = {path.partition("#")[0] for path in re.findall(r"\]\(((?:docs|CONT)[^)]+)\)", README)}
    assert len(named) > 20
    assert {path for path in named if not (Path(__file__).parents[2] / path).is_file()} == set()


@pytest.mark.slow
def test_its_python_runs_as_printed(tmp_path):
    from kernels import book_of, run_book, shown

    book = run_book(book_of(YOURS, SNIPPET), tmp_path)
    assert "'loss': " in (result := shown(book.cells[-1]))
    assert "Axes" in result
    assert (tmp_path / "runs/mine/ledger.json").is_file()


@pytest.mark.by_hand
def test_a_script_written_from_it_trains_modules_of_two_libraries_and_continues_them(tmp_path):
    import plimsoll
    from kernels import book_of, run_book, shown

    book = run_book(book_of(*BOTH.split("---\n")), tmp_path)
    for name, cell in zip(("nnx", "equinox"), book.cells[-2:], strict=True):
        run = plimsoll.load(tmp_path / f"runs/{name}")
        assert len(shown(cell, "image/png")) > 1000
        rows = run.metrics()
        assert {100, 200} <= {row["step"] for row in rows if "loss" in row}
        evaluated = [row["validation_loss"] for row in rows if "validation_loss" in row]
        assert float(shown(cell).split()[-1]) == pytest.approx(min(evaluated), rel=1e-4)
        assert min(evaluated) < 1 < 3 < 8 * 0.43  # of the variance of the sum of eight sines
        assert run.ledger.measured_bytes <= run.ledger.budget_bytes == 2**30
