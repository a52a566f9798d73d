"""Our side of text_vs_trainer.py: plimsoll as its users run it, on the tokens, order and weights that are given.

    python benchmarks/sides.py ours_text --tokens T.npy --order O.npy --config C.json --memory 600MiB

Nothing is tuned by hand: the planner chooses a plan under --memory for a run of AS_LONG times the steps, for which
these stand, compiles in children, times the best few in two minutes at most; and a training process of its own does
the steps by that plan (run.prepare_run, as `plimsoll train --plan` does). Losses, seconds and the peak are read from
its run folder. What differs from a user's run is the recipe, ours/given_text.py.
float32 is `--numerics exact`, --bf16 is `--numerics mixed`.
"""

import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from peers import contract

HERE = Path(__file__).resolve().parent
ROPE_THETA, RMS_NORM_EPSILON = 10_000.0, 1e-6
"""What models/decoder.py computes with, and has no option for."""
PLANNING = "120s"
AS_LONG = 100
"""The planner asks for less where training takes a minute or two: a faster step would save less than asking takes."""
ABOVE_FLOOR = 1.1
"""At the floor itself only the slowest plan fits."""


def side() -> None:
    parser = contract.arguments(__doc__.splitlines()[0])
    parser.add_argument("--memory", help="budget like 600MiB; default: what is available, less a margin")
    parser.add_argument("--run", type=Path, help="keep the run folder here; default: a temporary one")
    options = parser.parse_args()
    if options.threads < len(os.sched_getaffinity(0)):  # XLA takes as many threads as there are cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    # This checkout's plimsoll, whichever is installed; and the recipe's name, in children too.
    paths = [str(HERE.parent / "src"), str(HERE / "ours"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    sys.path[:0] = paths[:2]
    import sitecustomize  # noqa: F401  (ours: this process started without it)

    with tempfile.TemporaryDirectory() as temporary:
        print(trained(options, options.run or Path(temporary) / "run"))


def trained(options, run: Path) -> str:
    """The result line. A budget that is refused is raised to ABOVE_FLOOR of the smallest peak found, and named."""
    from plimsoll.errors import BudgetError, PlimsollError

    try:
        return result(options, run, memory=options.memory)
    except BudgetError as refusal:
        if refusal.floor_bytes is None:
            sys.exit(f"error: {refusal}")
        print(f"{refusal}\ntrying {ABOVE_FLOOR} of the smallest instead", file=sys.stderr)
        raised = str(int(ABOVE_FLOOR * refusal.floor_bytes))
        refused = {"refused_bytes": refusal.budget_bytes, "floor_bytes": refusal.floor_bytes}
        again = json.loads(result(options, run.with_name(run.name + "-raised"), memory=raised))
        return json.dumps(again | refused)
    except PlimsollError as problem:
        sys.exit(f"error: {problem}")


def result(options, run: Path, *, memory: str | None) -> str:
    """Plans and trains in `run` and reads what it wrote."""
    import plimsoll
    from plimsoll.api.train import TrainOptions, prepare_run

    recipe = given_recipe(options)
    link_inputs(options, run)
    numerics = "mixed" if options.bf16 else "exact"
    longer = dataclasses.replace(recipe, steps=AS_LONG * recipe.steps)
    planned = plimsoll.plan(longer, memory=memory, numerics=numerics, within=PLANNING, measure=True)
    (run / "longer.json").write_text(json.dumps(planned.to_dict()))
    asked = TrainOptions(
        memory=memory,
        numerics=numerics,
        plan=str(run / "longer.json"),
        run=str(run),
        log_every=1,
        save_every=options.steps,
        quiet=True,
    )
    ready = prepare_run(recipe, asked, lambda text: print(text, file=sys.stderr))
    done = subprocess.run(ready.command, env=ready.environment, stdout=sys.stderr, pass_fds=[ready.lock], check=False)
    if done.returncode:
        sys.exit(f"error: the training process ended with code {done.returncode}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ledger, planned = (json.loads((run / name).read_text()) for name in ("ledger.json", "plan.json"))
    assert [row["step"] for row in rows] == list(range(1, options.steps + 1))
    line = contract.result_line(
        losses=[row["loss"] for row in rows],
        step_seconds=[row["step_seconds"] for row in rows],
        tokens_per_step=recipe.effective_batch * recipe.seq_len,
        versions={"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax")},
        peak_bytes=ledger["measured"]["peak_bytes"],
    )
    extra = {
        "plan": planned["plan"],
        "budget_bytes": ledger["budget_bytes"],
        "predicted_peak_bytes": ledger["predicted"]["peak_bytes"],
        "notes": ledger["notes"],
    }
    return json.dumps(json.loads(line) | extra)


def given_recipe(options):
    from given_text import GivenText

    config = json.loads(options.config.read_text())
    if (config["rope_theta"], config["rms_norm_eps"]) != (ROPE_THETA, RMS_NORM_EPSILON):
        sys.exit(f"--config: rope_theta must be {ROPE_THETA:g} and rms_norm_eps {RMS_NORM_EPSILON:g} on our side")
    if options.decay != "matrices":
        sys.exit("--decay: plimsoll's AdamW decays matrices and embeddings, and has no option for more")
    return GivenText(
        dataset_id="given",
        vocab_size=config["vocab_size"],
        seq_len=config["seq_len"],
        width=config["hidden_size"],
        inner=config["intermediate_size"],
        layers=config["layers"],
        heads=config["heads"],
        tied=config["tie_embeddings"],
        batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        steps=options.steps,
        learning_rate=options.learning_rate,
        warmup_steps=options.warmup,
        final_fraction=options.floor,
        weight_decay=options.weight_decay,
        beta1=options.beta1,
        beta2=options.beta2,
        epsilon=options.epsilon,
        clip_norm=options.clip,
        token_count=len(np.load(options.tokens, mmap_mode="r")),
    )


def link_inputs(options, run: Path) -> None:
    """Under the names the recipe expects: no path in the recipe, so that a plan is found again in the cache."""
    from given_text import ORDER, TOKENS, WEIGHTS

    run.mkdir(parents=True)
    for name, path in ((TOKENS, options.tokens), (ORDER, options.order), (WEIGHTS, options.weights)):
        if path is not None:
            (run / name).symlink_to(path.resolve())
