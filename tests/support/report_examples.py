"""A plan and a ledger whose sums are easy to check by hand; every test of a table starts from here."""

from pathlib import Path

import plimsoll
from plimsoll.planned import Alternative, Component, Ledger, Peaks, Plan, Planned, RunLedger
from plimsoll.types import Levers
from plimsoll.units import GIB, MIB

PLAN = Plan(
    chip="cpu",
    accumulation=4,
    pinned=("micro_batch",),
    levers=Levers(micro_batch=16, remat="block", loss_chunk=1024, precision="bfloat16", prefetch=2, async_save=False),
)

PLANNED = Planned(
    plan=PLAN,
    ledger=Ledger(
        budget_bytes=2 * GIB,
        components={
            "process": 384 * MIB,
            "parameters": 128 * MIB,
            "gradients": 128 * MIB,
            "optimizer": 256 * MIB,
            "activations": 640 * MIB,
        },
        phase="train",
        phases={"start": 700 * MIB, "train": 1536 * MIB, "evaluate": 900 * MIB, "save": 1000 * MIB},
    ),
    recipe="stories-small",
    parameters=33_554_432,
    step_seconds=0.5,
    step_seconds_source="roofline",
    step_flops=1e12,
    chip_flops=1e12,
    tokens_per_step=16_384,
    examples_per_step=64,
    compiles=3,
    devices=1,
    reason="the fastest of 12 plans that fit; saving every block's input costs 0.1 s and frees 1.2 GiB",
    alternatives=(
        Alternative(
            plan=Plan.from_dict(PLAN.to_dict() | {"micro_batch": 8, "accumulation": 8, "remat": "dots"}),
            predicted_peak_bytes=1700 * MIB,
            step_seconds=0.56,
            reason="slower by more than 5 %",
        ),
        Alternative(
            plan=PLAN.with_levers(precision="float32", loss_chunk=0),
            predicted_peak_bytes=1900 * MIB,
            step_seconds=None,
            reason="no float32 rate is known for this chip",
        ),
    ),
)

LEDGER = RunLedger(
    budget_bytes=2 * GIB,
    phase="train",
    source="compiled",
    predicted=Peaks(peak_bytes=1536 * MIB, phases={"start": 700 * MIB, "train": 1536 * MIB}),
    measured=Peaks(peak_bytes=1440 * MIB, phases={"start": 714 * MIB, "train": 1440 * MIB}),
    components={
        "process": Component(predicted=384 * MIB, measured=390 * MIB),
        "parameters": Component(predicted=128 * MIB, measured=128 * MIB),
        "activations": Component(predicted=1024 * MIB),
    },
    resumed_from_step=1200,
    notes=("replanned once: the loader held two batches more than predicted",),
)

SOURCES = str(Path(plimsoll.__file__).parents[1])
"""The PYTHONPATH of a child process that is to import the same plimsoll."""
