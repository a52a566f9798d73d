"""What pages show of results and of the code: read here, put into the pages by cog, and held to it by `make docs`.

A page asks in a comment, `[[[cog print(figures.trm()) ]]]`, and shows what was answered until `[[[end]]]`: so it reads
the same in the repository and on the site. `make figures` writes the answers; `make docs` fails where one differs from
the page, or where a file or a figure is missing. Result files are what benchmark programs wrote (docs/keep.py).
"""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
MIB, GIB = 2**20, 2**30


class MissingFigure(Exception):
    """A page names what no result file has."""


def read(name: str, *keys: str) -> Any:
    """The value in docs/results/NAME.json under these keys, one inside the other."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise MissingFigure(f"docs/results/{name}.json is not there: keep one with `python docs/keep.py FILE`")
    value = json.loads(path.read_text("utf-8"))
    for depth, key in enumerate(keys):
        if key not in value:
            raise MissingFigure(f"docs/results/{name}.json has no {' / '.join(keys[: depth + 1])}: {', '.join(value)}")
        value = value[key]
    return value


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def source(name: str, command: str) -> str:
    """Returns the source of a figure: the file, the command that wrote it, and under which conditions."""
    conditions = read(name, "conditions")
    if "chip" in conditions and "with" in conditions["commit"]:
        return f"From [results/{name}.json](results/{name}.json): `{command}` at {conditions['commit']}."
    return (
        f"From [results/{name}.json](results/{name}.json): `{command}` at {conditions['commit'][:8]}, on"
        f" {conditions['cores']} cores of an {conditions['cpu']}."
    )


def trm() -> str:
    """A supervision step of the published puzzle model beside the same blocks in torch."""
    rows = []
    for side in read("trm", "results", "attention"):
        cells = []
        for variant in ("attention", "mlp"):
            mine = read("trm", "results", variant, side)
            precision = re.split(r"[-+]", side)[1]
            theirs = read("trm", "results", variant, f"torch-{precision}")
            seconds, beside = statistics.median(mine["seconds"]), statistics.median(theirs["seconds"])
            cells += [
                f"{seconds:.2f} s ({seconds / beside:.2f})",
                f"{mine['peak_bytes'] / MIB:,.0f} MiB ({mine['peak_bytes'] / theirs['peak_bytes']:.2f})",
            ]
        rows.append([f"`{side}`", *cells])
    head = ["", "attention: step", "peak of the process", "MLP: step", "peak of the process"]
    others = [
        share
        for variant in ("attention", "mlp")
        for side in read("trm", "results", variant).values()
        for share in side["cores_taken_by_others"]
    ]
    said = f" Other programs took {min(others):.2f} to {max(others):.2f} cores meanwhile."
    return table(head, rows) + "\n" + source("trm", "python benchmarks/trm.py --rounds 5") + said


def trm_goals() -> str:
    """Returns the goals of that step over torch's, and what it came to."""
    four, kept = "plimsoll-{}+4x4", "plimsoll-{}+remat"
    both = "attention", "mlp"
    float32, bfloat16 = ([_over_torch(of, four, bits, "seconds") for of in both] for bits in ("float32", "bfloat16"))
    time, memory = (_over_torch("attention", kept, "bfloat16", of) for of in ("seconds", "peak_bytes"))
    return (
        "Goals, over torch in the same precision: at most 0.6 of the time in float32 with `+4x4`,"
        f" {_held(float32, 0.6)}; 0.8 in bfloat16 with `+4x4`, {_held(bfloat16, 0.8)}; for attention in bfloat16 with"
        f" `+remat` 0.95 of the time, {_held([time], 0.95)}, in half of the memory, {_held([memory], 0.5)}."
    )


def _over_torch(variant: str, side: str, precision: str, measure: str) -> float:
    mine, theirs = (
        read("trm", "results", variant, name, measure) for name in (side.format(precision), f"torch-{precision}")
    )
    return mine / theirs if measure == "peak_bytes" else statistics.median(mine) / statistics.median(theirs)


def _held(shares: Sequence[float], most: float) -> str:
    over, found = sum(share > most for share in shares), " and ".join(f"{share:.2f}" for share in shares)
    word = "met" if not over else "missed" if over == len(shares) else "missed by one"
    return f"{word}{' by both' * (len(shares) == 2 and word != 'missed by one')} ({found})"


def _milliseconds(leaves: str, side: str) -> str:
    mine = read("optimizers", "results", leaves, side)
    wall, cpu = (1000 * statistics.median(mine[key]) for key in ("seconds", "cpu_seconds"))
    return f"{wall:.1f}, {cpu:.1f} ms"


def narrow_state() -> str:
    """One update with the state in 32 and in 8 bits."""
    sides = ("optax", "plimsoll-8", "bitsandbytes-8", "torchao-8")
    leaf, leaves = "one of 16.8M", "40 of 0.4M"
    mine = [read("optimizers", "results", leaf, side) for side in sides]
    rows = [
        ["state, bytes a weight", *(f"{side['state_bytes']:.3f}" for side in mine)],
        ["temporaries as compiled, bytes a weight", *(_known(side["compiled_transient_bytes"]) for side in mine)],
        [
            "what the resident set rises by, bytes a weight",
            *(_known(side["resident_transient_bytes"]) for side in mine),
        ],
        ["time, CPU time", *(_milliseconds(leaf, side) for side in sides)],
        ["the same of 40 leaves of 0.4M", *(_milliseconds(leaves, side) for side in sides)],
        ["error of five updates", *(f"{side['errors']['alike']:.4f}" for side in mine)],
    ]
    head = ["one update of a leaf of 16.8M weights", "float32 state (optax)", "8 bits", "bitsandbytes", "torchao"]
    return table(head, rows) + "\n" + source("optimizers", "python benchmarks/optimizers.py")


def narrow_weights() -> str:
    """The same update with weights in fewer bits too."""
    sides = [("plimsoll-8", "32 bits"), ("plimsoll-8-w24", "24 bits"), ("plimsoll-8-w16", "16 bits")]
    mine = [read("optimizers", "results", "one of 16.8M", side) for side, _ in sides]
    rows = [
        ["weights and state, bytes a weight", *(f"{s['weight_bytes'] + s['state_bytes']:.3f}" for s in mine)],
        ["CPU time", *(f"{1000 * statistics.median(s['cpu_seconds']):.1f} ms" for s in mine)],
        ["error of five updates", *(f"{s['errors']['alike']:.4f}" for s in mine)],
    ]
    return table(["the same leaf, 8-bit state", *(bits for _, bits in sides)], rows)


def _known(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def parity() -> str:
    """Returns a table of what 8-bit state costs in learning."""
    steps, seeds = read("eight_bit_parity", "conditions", "options", "steps"), read("eight_bit_parity", "seeds")
    off = [held["8"]["held_out"] / held["float32"]["held_out"] - 1 for held in seeds.values()]
    return (
        f"After {int(steps):,} steps of a 1.1M model on TinyStories the held-out loss was "
        + ", ".join(f"{share:+.3%}" for share in off).replace("%", " %")
        + f" off that of float32 with 8-bit state ({len(off)} seeds). "
        + source("eight_bit_parity", "python benchmarks/eight_bit_parity.py --forms 8")
    )


def window_price() -> str:
    """Returns a table of what a token costs in a long window beside a short one."""
    short, long = (row for row in read("longcontext", "rows") if row["side"] == "ours")
    took = " and ".join(f"{row['microseconds_per_token']:.0f}" for row in (long, short))
    beyond = long["temporary_bytes_of_one_window"] - short["temporary_bytes_of_one_window"]
    slope = beyond / (long["length"] - short["length"]) / 1024
    width, layers, vocabulary = (
        int(read("longcontext", "conditions", "options", key)) for key in ("width", "layers", "vocab")
    )
    bytes_of = [
        f"{row['temporary_bytes_of_one_window'] / MIB:.1f} MiB of {row['length']:,} tokens" for row in (short, long)
    ]
    return (
        f"* A token of {long['length']:,} costs **{long['ratio']:.2f}** times one of {short['length']:,}: {took} us a"
        f" token (width {width}, {layers} layers, vocabulary {vocabulary:,}, blocks recomputed, float32). Temporaries"
        f" of one window: {', '.join(bytes_of)}, so {slope:.1f} KiB a token. "
        + source("longcontext", "python benchmarks/longcontext.py --rounds 7 --sides ours")
    )


def packed_loader(name: str) -> str:
    """Windows of a packed file, each way of reading them in a process of its own on one core."""
    what = {
        "plimsoll": "runs of 64 KiB, 64 mixed (what is built)",
        "plimsoll, in a thread": "the same, made ready in a thread",
        "memory map": "memory map, gathered",
        "a file for each": "a file for each window, int64 (the original's way)",
    }
    rows = [
        [what[way], f"{of['rows_per_second']:,.0f}", f"{of['grown_bytes'] / MIB:.0f} MiB"]
        for way, of in read(name, "ways").items()
    ]
    length, size = read(name, "seq_len"), read(name, "file_bytes") / MIB
    words = (
        f"Windows of {length:,} tokens, {read(name, 'batch')} a batch, of a file of {size:.0f} MiB in the page cache"
    )
    where = f"from [results/{name}.json](results/{name}.json)"
    return f"\n{words}, on one core, everything else stopped; {where}:\n" + table(
        ["way", "windows/s by the clock", "resident"], rows
    )


def beside_attention() -> str:
    """Returns a table of what a token costs beside causal attention of the same width, as the window grows."""
    rows = []
    for row in read("longcontext_attention", "rows") + read("longcontext_attention32", "rows"):
        side = "linear recurrence" if row["side"] == "ours" else "causal attention, in blocks of 256"
        rows.append(
            [
                side,
                f"{row['length']:,}",
                f"{row['microseconds_per_token']:,.0f} us",
                f"{row['temporary_bytes_of_one_window'] / MIB:,.1f} MiB",
            ]
        )
    head = ["", "window", "a token", "temporaries of one window"]
    where = "python benchmarks/longcontext.py --lengths 2048 8192 --tokens 8192 --rounds 3"
    long = read("longcontext_attention32", "rows")[0]["microseconds_per_token"]
    ours = read("longcontext", "rows")[1]["microseconds_per_token"]
    return (
        "* Beside causal attention of the same width, in turn:\n"
        + table(head, rows)
        + "\n"
        + source("longcontext_attention", where)
        + f" The last one by itself, one step ([results](results/longcontext_attention32.json)): {long / ours:.0f}"
        " times what the recurrence takes there, by the line above."
    )


def loaded() -> str:
    """Returns a table of what a pretrained model takes as it is kept, and while it is loaded."""
    forms = {row["bits"]: row for row in read("load_pretrained", "rows") if row["files"] == 1}
    rows = [[str(bits), _mib(row["stored_bytes"]), _mib(row["grown_bytes"])] for bits, row in forms.items()]
    told = source("load_pretrained", "python benchmarks/load_pretrained.py")
    return table(["bits", "kept", "resident set grew by at most"], rows) + "\n" + told


def estimates() -> str:
    """Returns a table of temporaries estimated without a compiler over those of the compiler, by chip."""
    rows = []
    of_all = read("estimated", "rows")
    for chip in dict.fromkeys(row["chip"] for row in of_all):
        off = sorted(row["estimated"] / row["compiled"] - 1 for row in of_all if row["chip"] == chip)
        rows.append([chip, str(len(off)), ", ".join(f"{100 * share:+.0f}" for share in off) + " %"])
    where = "python benchmarks/estimated.py --chips h200 tpu-v5e-8 tpu-v4-64 --count 10"
    return table(["chip", "plans", "estimated over compiled, less 1"], rows) + "\n" + source("estimated", where)


def ladder(name: str) -> str:
    """Each lever in turn, on top of those before it: predicted and measured, and the seconds of a step."""
    name, rungs, rows = f"ladder-{name}", measured_rungs(name), []
    for rung in rungs:
        predicted, peak = rung["predicted_peak_bytes"] / MIB, rung["measured_peak_bytes"] / MIB
        least = peak * MIB / rungs[0]["measured_peak_bytes"]
        rows.append(
            [
                rung["words"],
                f"{predicted:,.1f}",
                f"{peak:,.1f} ({predicted / peak - 1:+.1%})",
                f"{least:.2f}",
                f"{rung['step_seconds']:.1f} s ({rung['step_ratio']:.2f})",
                f"{rung['validation_loss']:.3f}",
            ]
        )
    head = ["each with those before it", "predicted, MiB", "measured", "of the first", "a step", "loss, held out"]
    where = f"{read(name, 'parameters'):,} parameters, {_examples(read(name, 'effective_batch'))} a step"
    return f"\n{where}, from [results/{name}.json](results/{name}.json):\n" + table(head, rows)


def lever(name: str) -> str:
    """Returns the plans without a lever and with it, trained or compiled (benchmarks/levers.py)."""
    columns = read("levers", "tables", name)
    trained = "measured_peak_bytes" in columns[0]
    on_card = not trained and columns[0]["plan"]["chip"] != "cpu"
    hosted = on_card and any((column["host_peak_bytes"] or 0) > GIB for column in columns)
    head = ["", "state", "step temporaries", "peak, predicted"]
    head += ["measured", "a second", "drift of the loss"] if trained else ["of the host"] * hosted + ["a step"]
    commands = list(dict.fromkeys(column["command"] for column in columns))
    ran = "\n".join(command.strip() for command in (commands if len(commands) <= 2 else commands[:1]))
    more = "" if len(commands) <= 2 else f"; {len(commands) - 1} more are like it"
    where = "trained" if trained else _how_known(columns)
    commit = columns[0]["commit"][:8]
    told = f"From [results/levers.json](results/levers.json), {where}, at {commit}{more}:\n\n```text\n{ran}\n```\n"
    return table(head, [_of_lever(column, hosted=hosted) for column in columns]) + "\n" + told


def _how_known(columns: list[Any]) -> str:
    """Returns where bytes and times of plans that were not trained come from: each column's plan says it."""
    sources = [column["step_seconds_source"] for column in columns]
    timed = [column["title"] for column, source in zip(columns, sources, strict=True) if source == "measured"]
    if len(timed) == len(columns):
        return "compiled and timed"
    if not timed:
        return "compiled and not run, times of steps estimated"
    return f"compiled, steps timed of {', '.join(timed)} and else estimated"


def puzzles_on_a_slice() -> str:
    """Returns the bytes of the puzzle models on each chip of a TPU slice, as compiled (benchmarks/levers.py)."""
    from plimsoll.units import format_seconds

    columns = read("levers", "tables", "puzzles")
    parts = ("step temporaries", "parameters", "optimizer", "ema", "carry", "batches")
    rows = [[name, *(_mib(column["parts"].get(name, 0)) for column in columns)] for name in parts]
    rows += [
        ["peak", *(_mib(column["predicted_peak_bytes"]) for column in columns)],
        ["of each host, while it saves", *(_mib(column["host_peak_bytes"]) for column in columns)],
        ["a step, by the rates", *(format_seconds(column["step_seconds"]) for column in columns)],
    ]
    ran = "\n".join(column["command"] for column in columns)
    told = f"From [results/levers.json](results/levers.json), at {columns[0]['commit'][:8]}:\n\n```text\n{ran}\n```\n"
    return table(["bytes of a chip", *(column["title"] for column in columns)], rows) + "\n" + told


def _of_lever(column: Any, *, hosted: bool) -> list[str]:
    from plimsoll.units import format_seconds

    sizes = [column[name] for name in ("state_bytes", "temporary_bytes", "predicted_peak_bytes")]
    cells = [column["title"], *map(_mib, sizes)]
    if "measured_peak_bytes" in column:
        name, rate = next((name, column[name]) for name in column if name.endswith("_per_second"))
        drift = f"{column['loss_drift']:.1e}" if column["loss_drift"] else "0"
        return [*cells, _mib(column["measured_peak_bytes"]), f"{rate:,.0f} {name.split('_')[0]}", drift]
    return [*cells, *[_mib(column["host_peak_bytes"] or 0)] * hosted, format_seconds(column["step_seconds"])]


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / MIB:,.1f} MiB"


def measured_rungs(name: str) -> list[Any]:
    """Returns the rungs of a ladder that were trained, from the top down."""
    return [rung for rung in read(f"ladder-{name}", "rungs") if rung["outcome"] == "measured"]


def picture_of_ladder(name: str) -> str:
    """Returns the picture of a ladder (docs/pictures.py draws it), and what it shows."""
    rungs = measured_rungs(name)
    peaks = [rung["measured_peak_bytes"] for rung in rungs]
    off = max(abs(rung["predicted_peak_bytes"] / peak - 1) for rung, peak in zip(rungs, peaks, strict=True))
    first, last, saved = peaks[0] / MIB, peaks[-1] / MIB, read(f"ladder-{name}")
    return (
        f"\n![Peak memory as levers are added, predicted and measured](docs/pictures/ladder-{name}.svg)\n\n"
        f"One model ({saved['parameters'] / 1e6:.1f}M parameters), one effective batch, {len(rungs)} plans on a CPU:"
        f" {first:,.0f} MiB become {last:,.0f}, each predicted to {off:.1%}".replace("%", " %")
        + f" ([result](docs/results/ladder-{name}.json), at {saved['conditions']['commit'][:8]})."
        " `plimsoll ladder` measures it for a recipe of yours.\n"
    )


def predictions_in_words() -> str:
    """Returns how far predictions were off in all configurations that benchmarks/prediction.py drew."""
    seen = [each for name in _draws() for each in _measured(name)]
    off = [abs(row["predicted"] / peak - 1) for row, peak in seen]
    over = sum(peak > row["memory"] for row, peak in seen)
    lost = sum(_uncommitted(row) for row, _ in seen)
    more = f" {lost} of them were measured with changes that were not committed." if lost else ""
    peaks = [peak for _, peak in seen]
    text = sum(row["label"].split()[0] in ("stories", "code") for row, _ in seen)
    refused = [peak <= row["budget"] for row, peak in seen if row["outcome"] == "refused"]
    return (
        f"On two CPU cores, {len(seen)} [small configurations](docs/memory.md#how-wrong-it-is) ({min(peaks) / GIB:.1f}"
        f" to {max(peaks) / GIB:.1f} GiB, {text} of them language models): the predicted peak was"
        f" {statistics.median(off):.1%} off in the median, {max(off):.1%} at most; {over or 'none'} over budget, after"
        f" mends made on some of the same draws; {sum(refused)} of {len(refused)} refusals were too cautious.{more}"
    ).replace("%", " %")


def predictions_beside_goals() -> str:
    """Returns which draws miss the goals of benchmarks/prediction.py, and how many rows nobody can measure again."""
    medians, far = [], []
    for name in _draws():
        seen = _measured(name)
        off = [(abs(row["predicted"] - peak) / MIB, abs(row["predicted"] / peak - 1)) for row, peak in seen]
        median, share = (statistics.median(each) for each in zip(*off, strict=True))
        if median > 4 and share > 0.01:
            medians.append(f"`{name}` ({median:.2f} MiB, {share:.1%})")
        worst = [f"{size:.1f} MiB, {share:.1%}" for size, share in sorted(off)[::-1] if size > 16 and share > 0.03]
        if worst:
            far.append(f"{len(worst)} of the {len(seen)} of `{name}` ({'; '.join(worst)})")
    rows = [(name, row) for name in _draws() for row, _ in _measured(name)]
    lost = [f"`{name}`" for name, row in rows if _uncommitted(row)]
    lines = [
        f"* The goal of the median is missed by {', '.join(medians) or 'none'}; that of the worst by"
        f" {', '.join(far) or 'none'}."
    ]
    if lost:
        lines.append(
            f"* {len(lost)} of the {len(rows)} that are measured, of {', '.join(sorted(set(lost)))},"
            " were drawn at commits with changes that were not committed: nobody can check that version out."
        )
    return "\n".join(lines).replace("%", " %")


def _draws() -> list[str]:
    return [path.stem.removeprefix("prediction-") for path in sorted(RESULTS.glob("prediction-*.json"))]


def _measured(name: str) -> list[tuple[Any, int]]:
    """Returns the rows of a draw that were measured, each with its largest peak."""
    return [(row, max(row["peaks"])) for row in read(f"prediction-{name}", "rows") if row.get("peaks")]


def _uncommitted(row: Any) -> bool:
    return "dirty" in (row.get("commit") or "")


def predictions() -> str:
    """Predicted beside measured, of configurations that benchmarks/prediction.py drew."""
    head = ["drawn", "measured", "median error", "worst", "under-predicted", "over its budget", "refused", "wrongly"]
    return table(head, map(_drawn, _draws()))


def _drawn(name: str) -> list[str]:
    found, seen = read(f"prediction-{name}", "rows"), _measured(name)
    off = [row["predicted"] - peak for row, peak in seen]
    worst, of_worst = max(((abs(each), peak) for each, (_, peak) in zip(off, seen, strict=True)))
    refused = [(row, peak) for row, peak in seen if row["outcome"] == "refused"]
    return [
        f"[{name}](results/prediction-{name}.json)",
        f"{len(seen)} of {len(found)}",
        f"{statistics.median(map(abs, off)) / MIB:.1f} MiB",
        f"{worst / MIB:.1f} MiB, {worst / of_worst:.1%}",
        f"{sum(each < 0 for each in off)}, at most by {max(0, -min(off)) / MIB:.1f} MiB",
        f"{sum(peak > row['memory'] for row, peak in seen)}",
        f"{sum(row['outcome'] == 'refused' for row in found)}",
        f"{sum(peak <= row['budget'] for row, peak in refused)}",
    ]


def demo(*parts: str) -> str:
    """Returns what `make demo` printed."""
    blocks = ["\n".join(read("demo", part)) for part in parts]
    return "\n```text\n" + "\n...\n".join(blocks) + "\n...\n```\n"


def demo_minutes() -> str:
    """Returns how long the demo took, and on which machine."""
    conditions, seconds = read("demo", "conditions"), read("demo", "seconds")
    # A result without the word is of the time when the set-up was counted, on a machine that others used.
    others = " that others used too" if conditions.get("shared", True) else ""
    counted = "after its set-up" if "shared" in conditions else "with its set-up"
    return (
        f"On {conditions['cores']} cores of an {conditions['cpu']}{others} it took {seconds // 60:.0f} min"
        f" {seconds % 60:.0f} s {counted} ([result](docs/results/demo.json), at {conditions['commit'][:8]})."
    )


def trained(name: str, *, told: str = "") -> str:
    """A run to where it went: what it learned, in what time, and its bytes predicted and measured."""
    name = f"run-{name}"
    run = read(name)
    judged = f"{run['judged_by'].replace('_', ' ')} of what was held out {run['best'][run['judged_by']]:.4f}"
    peak, predicted = run["peak_bytes"] / MIB, run["predicted_bytes"] / MIB
    evaluated = max(each["step"] for each in run["evaluations"])
    stopped = run["step"] > evaluated  # at a step behind the last one that is logged; a run that ended is evaluated
    steps = f"{'at least ' * stopped}{max(run['step'], evaluated):,}"
    return (
        f"`{run['recipe']}`, {run['parameters']:,} parameters, {_examples(run['examples_per_step'])} a step{told}:"
        f" {steps} steps in {run['seconds'] / 60:.1f} minutes, training loss {run['loss']:.4f}, {judged} (step"
        f" {run['best']['step']:,}). Predicted {predicted:.1f} MiB, measured **{peak:.1f}**{_above(peak, predicted)} of"
        f" {run['budget_bytes'] / MIB:,.0f}. From [results/{name}.json](results/{name}.json), at"
        f" {run['conditions']['commit'][:8]}, on {run['conditions']['cores']} cores of an {run['conditions']['cpu']}."
    )


def _examples(count: int) -> str:
    return f"{count} example{'s' * (count != 1)}"


def _above(peak: float, predicted: float) -> str:
    return f" ({peak / predicted - 1:.1%} above the prediction)".replace("%", " %") if peak > predicted else ""


def language() -> str:
    """Returns tables of a model of linear recurrences beside a transformer: what they learned, and where."""
    rows = read("longcontext_language", "rows")
    learned = [
        [
            row["model"],
            f"{row['parameters']:,}",
            f"{row['steps']:,}",
            f"{row['cpu_seconds_per_step']:.2f}",
            f"**{row['validation_loss']:.3f}**",
        ]
        for row in rows
    ]
    starts = [stretch.partition(" ")[0] for stretch in rows[0]["by_position"]]
    places = [[row["model"], *(f"{loss:.2f}" for loss in row["by_position"].values())] for row in rows]
    minutes = read("longcontext_language", "conditions", "options", "minutes")
    return (
        f"{table(['', 'parameters', 'steps', 'processor seconds a step', 'nats a token, held out'], learned)}\n"
        f"{table(['nats, from token', *starts], places)}\n"
        f"{source('longcontext_language', f'python benchmarks/longcontext_language.py --minutes {minutes}')}"
    )


def by_position(name: str) -> str:
    """Returns a table of the held-out loss over stretches of positions of a window, at a run's best step."""
    best = read(f"run-{name}", "best")
    starts = sorted(int(key.rpartition("_")[2]) for key in best if key.startswith("loss_from_"))
    losses = [f"{best[f'loss_from_{start}']:.3f}" for start in starts]
    return table(["from token", *(f"{start:,}" for start in starts)], [["nats a token", *losses]])


def evaluations(name: str, **columns: str) -> str:
    """Returns a table of what evaluations of a run found: a column for each metric, under the name given for it."""
    rows = [
        [f"{row['step']:,}", f"{row['seconds'] / 60:.1f}", *(_metric(name, row[name]) for name in columns)]
        for row in read(f"run-{name}", "evaluations")
    ]
    return table(["step", "minutes", *columns.values()], rows)


def _metric(name: str, value: float) -> str:
    return f"{value:.1%}".replace("%", " %") if "accuracy" in name else f"{value:.4f}"


def best_size() -> str:
    """Returns what five sizes came to that were trained for the same time, the one that was chosen marked."""
    from plimsoll.units import format_count

    rows, chosen = read("best_size", "rows"), read("best_size", "found", "fields", "target_params")
    least = min(row["loss"] for row in rows)
    cells = [
        [
            f"**{format_count(row['parameters'])}**"
            if row["target_params"] == chosen
            else format_count(row["parameters"]),
            f"{row['steps']:,}",
            format_count(row["tokens"]),
            f"{row['loss']:.3f} ({row['loss'] / least - 1:+.1%})".replace("%", " %"),
        ]
        for row in rows
    ]
    minutes = read("best_size", "conditions", "options", "minutes")
    told = source("best_size", f"python benchmarks/best_size.py --minutes {float(minutes):g}")
    return table(["parameters", "steps", "tokens", "held-out loss (over the best)"], cells) + f"\n{told}"


def processes() -> str:
    """Returns a table of what a second process brings, each of them on a core of its own."""
    seconds = read("processes", "seconds")
    one, two = (statistics.median(seconds[count]) for count in ("1", "2"))
    options = read("processes", "options")
    share, most = (f"{read('processes', name):.0%}".replace("%", " %") for name in ("efficiency", "most"))
    apart = read("processes", "losses_apart")
    sizes = (
        f"{read('processes', 'parameters'):,} parameters, {options['batch_size']} windows a step in micro-batches of"
    )
    command = f"python benchmarks/processes.py --steps {options['steps']} --rounds {options['rounds']}"
    return (
        f"* Two processes on one machine, a core each, over Gloo: {two:.2f} s a step where one process takes {one:.2f},"
        f" an efficiency of **{share}** ({sizes} {options['micro_batch']}; medians of"
        f" {options['rounds']} rounds in turn;"
        f" two runs at once that share nothing, each with half the batch, have {most}: the most these cores give;"
        f" losses at most {apart:.1e} apart). From [results/processes.json](results/processes.json): `{command}` at"
        f" {read('processes', 'conditions', 'commit')[:8]}."
    )


def mesh_plans() -> str:
    """Returns a table of plans for several chips: how long they took, and their bytes beside those of the step."""
    rows = []
    for row in read("mesh_plans", "rows"):
        planned, module = row["planned_bytes"], row["module_bytes"]
        scaled = row["scaled"]
        least, most = scaled["efficiency_range"]
        timed = row["hidden_share"]
        beside = f"{timed:.0%} of the time" if timed else f"{row['hidden_at_most']:.0%} at most"
        rows.append(
            [
                f"`{row['chip']}`",
                f"`data={row['devices'] // row['fsdp']},fsdp={row['fsdp']}`",
                f"{planned / GIB:.2f} GiB",
                f"{module / GIB:.2f} GiB ({(planned - module) / module:+.2%})".replace("%", " %"),
                f"{scaled['sent_bytes'] / GIB:.1f} GiB",
                beside.replace("%", " %"),
                f"{scaled['efficiency']:.0%} ({least:.0%} to {most:.0%})".replace("%", " %"),
                f"{row['seconds']:.0f} s",
            ]
        )
    head = [
        "",
        "chosen",
        "a device, planned",
        "by the compiled step",
        "each sends",
        "beside other work",
        "efficiency",
        "time to plan",
    ]
    return table(head, rows) + "\n" + source("mesh_plans", "python benchmarks/mesh_plans.py")


def one_process() -> str:
    """Returns what one process takes beside a version before the work on several."""
    seconds, peaks = (
        [statistics.median(read("one_process", what, name)) for name in ("before", "now")]
        for what in ("seconds", "peaks")
    )
    before = read("one_process", "before")[:8]
    options = read("one_process", "options")
    size = " ".join(
        f"--{name.replace('_', '-')} {options[name]}" for name in ("rounds", "width", "layers", "micro_batch")
    )
    told = source("one_process", f"python benchmarks/processes.py --before {before} {size}")
    told += " There `--before` took a folder, the `src` of that commit."
    return (
        f"* One process pays nothing for the others: {seconds[1]:.3f} s a step and {peaks[1] / 2**20:.1f} MiB, where"
        f" {before}, of before the work on several, takes {seconds[0]:.3f} s and {peaks[0] / 2**20:.1f} MiB (a step's"
        f" time over that of before {read('one_process', 'ratio'):.3f}, and that of a run of eight steps and four"
        f" saves, from the command to its end, {read('one_process', 'whole_ratio'):.3f}; medians of pairs in turn)."
        f" {told}"
    )


def processes_recipes() -> str:
    """Returns how far losses of two and of four processes are from those of one, for each kind of recipe."""
    recipes = read("processes_recipes", "recipes")
    named = ", ".join(f"`{name}` {len(each['losses']['1'])}" for name, each in recipes.items())
    two, four = (max(each["apart"][count] for each in recipes.values()) for count in ("2", "4"))
    told = source("processes_recipes", "python benchmarks/processes.py --every-recipe")
    return (
        f"* Two and four processes take the steps of one: losses are at most {two:.1e} and {four:.1e} apart, relative"
        f" (steps: {named}; after more steps of a puzzle, whose halting is discontinuous, they part). {told}"
    )


def shared_tokens() -> str:
    """Returns how much faster two processes tokenise than one, each of them on a core of its own."""
    medians, copies = read("shared_tokens", "medians"), read("shared_tokens", "conditions", "options", "copies")
    busiest = read("shared_tokens", "busiest")
    return (
        f"Two processes on one machine, a core each, had the ids of {read('shared_tokens', 'text_bytes') / 1e6:.0f} MB"
        f" of source code in {medians['2']:.1f} s, one in {medians['1']:.1f}: {medians['1'] / medians['2']:.2f} times"
        f" as fast. The processor time of the one with most to do was {busiest['1']:.1f} s alone, {busiest['2']:.1f} of"
        f" two and {busiest['4']:.1f} of four."
        f" {source('shared_tokens', f'python benchmarks/shared_tokens.py --copies {copies}')}"
    )


def shared_saves() -> str:
    """Returns what two processes hold beside their state while they save it and read it, and the time of a save."""
    rows = read("shared_saves", "rows")

    def most(which: str, *names: str) -> str:
        return f"{max(size for name in names for size in rows[name][which]) / 2**20:.1f} MiB"

    parts = ("split", "split, in the background")
    command = f"python benchmarks/shared_saves.py --rounds {read('shared_saves', 'conditions', 'options', 'rounds')}"
    receiver, sender = (size / 2**20 for size in rows["split, not seen by all"]["beside_bytes"])
    return (
        f"Of a state of {read('shared_saves', 'mb')} MB, two processes that hold all of it each had at most"
        f" {most('beside_bytes', 'whole')} beside it while they saved, and took"
        f" {read('shared_saves', 'times'):.2f} times as long as one process; two that hold half of it each,"
        f" {most('beside_bytes', *parts)}, with `--async-save` or without. Reading it again took"
        f" {most('restore_beside_bytes', 'whole', *parts)} at most beside what each holds. Where the second does not"
        f" see the folder, it has {sender:.1f} MiB beside its half while it sends that, the first, which receives and"
        f" writes all of it, {receiver:.1f} MiB, and each"
        f" {most('restore_beside_bytes', 'split, not seen by all')} at most while the first one reads and sends it"
        " back."
        f" {source('shared_saves', command)}"
    )


def schedulers() -> str:
    """Returns a table of what was checked under each scheduler, and whether all runs ended with the same bits."""
    by_hand = read("schedulers", "fingerprints", "by hand")
    lines = []
    for name, version in read("schedulers", "versions").items():
        for number, check in enumerate(read("schedulers", "checks", name)):
            facts = ", ".join(f"{fact.replace('_', ' ')} {value}" for fact, value in check["facts"].items())
            shown = by_hand[:8] if check["what"].endswith("the same bits") else facts
            if not check["passed"]:
                raise MissingFigure(f"docs/results/schedulers.json has a check that failed: {check['what']}")
            what = check["what"].removeprefix(f"{name}: ")
            lines.append([f"**{version}**" if number == 0 else "", what, shown])
    commits = ", ".join(f"{name} {commit[:8]}" for name, commit in read("schedulers", "commits").items())
    after = (
        f"\nTwo processes, {read('schedulers', 'steps'):,} steps; seconds on cores that other programs used, too. The"
        " last line of each is the fingerprint of two processes that were started by hand, without a fault."
        f" {source('schedulers', 'python benchmarks/schedulers.py')} Each part was measured at its commit: {commits}."
    )
    return table(["", "checked", "seen"], lines) + after


def tortures() -> str:
    """Returns what was done to runs of one process and of two, and that nothing was lost by it."""
    lines = []
    for name, of in (("torture", "one process"), ("torture_processes", "two processes")):
        found = read(name)
        if found["lost"] or found["steps_different"] or found["fingerprints_same"] != found["planned_alike"]:
            raise MissingFigure(f"docs/results/{name}.json has runs that were lost, or learned something else")
        by_times = sorted(found["faults"].items(), key=lambda each: -each[1])
        kinds = ", ".join(f"{kind} {times}" for kind, times in by_times)
        lines.append(
            f"* Runs of {of}: **{sum(found['faults'].values())} faults** in {found['runs']} runs of {found['lives']}"
            f" lives ({kinds}): none lost, no step another one, {found['fingerprints_same']} of"
            f" {found['planned_alike']} fingerprints those of undisturbed runs; other troubles: {found['troubles']}."
            f" {source(name, f'python benchmarks/{name}.py')}"
        )
    return "\n".join(lines)


def recommend_quality(name: str, *rows: str) -> str:
    """Returns a table of trained runs of `recommend`, ranked for every user's test item, and of the baselines."""
    found = {row: read(name, "rows", row) for row in rows}
    lines = []
    for run in found.values():
        label = f"`{' '.join(['recommend', *run['words']])}`".replace("{pretrained}", "FOLDER")
        if "commit" in run:  # of another day than the rest
            label += f", at {run['commit'][:8]}"
        if "model" in run:
            lines.append([label, *_ranked(run["test"]), *_cost(run)])
            lines.append(["its model alone", *_ranked(run["model"]["test"]), "", ""])
        else:  # of before a model was mixed with counts
            lines.append([f"{label}, its model alone", *_ranked(run["test"]), *_cost(run)])
    baselines = next(iter(found.values()))["baselines"]["test"]
    lines += [[f"{baseline} (baseline)", *_ranked(ranks), "-", "-"] for baseline, ranks in baselines.items()]
    head = ["", *(measure.upper() for measure in RANKED), "time, evaluations included", "memory, predicted"]
    where = f"python benchmarks/recommend_quality.py --interactions {read(name, 'interactions')}"
    given = any("--pretrained" in run["words"] for run in found.values())
    return table(head, lines) + "\n" + source(name, where + " --pretrained FOLDER" * given)


def recommend_frozen() -> str:
    """Returns how the model alone ranks with a frozen language model beside it, and without one."""
    frozen, plain = (read("recommend_quality", "rows", row, "model", "test") for row in ("frozen", "defaults"))
    below = sum(frozen[measure] < plain[measure] for measure in RANKED)
    where = "below" if below == len(RANKED) else f"in {below} of {len(RANKED)} measures below"
    return (
        f"**The model alone with a frozen language model is {where} the one without**: {', '.join(_ranked(frozen))} for"
        f" {', '.join(_ranked(plain))}, one seed each."
    )


RANKED = "hr@10", "ndcg@10", "mrr"


def _ranked(metrics: Any) -> list[str]:
    return [f"{metrics[measure]:.4f}" for measure in RANKED]


def _cost(run: Any) -> list[str]:
    peak, predicted = run["peak_bytes"] / MIB, run["predicted_bytes"] / MIB
    return [
        f"{run['seconds'] / 60:.1f} min, {run['steps']:,} steps",
        f"{peak:.1f}, {predicted:.1f} MiB{_above(peak, predicted)}",
    ]


def control_quality() -> str:
    """Returns what a run of `control` reached: the mean over families, what driving costs, time and memory."""
    r2, cost = read("control_quality", "r2"), read("control_quality", "cost")
    cheap, words = _at_most(cost, AS_CHEAP), read("control_quality", "words")
    peak, predicted = read("control_quality", "peak_bytes") / MIB, read("control_quality", "predicted_bytes") / MIB
    rows = [
        ["R^2 on held-out variants, mean of the families", f"{read('control_quality', 'macro_r2'):.4f}"],
        ["the same, median", f"{statistics.median(r2.values()):.4f}"],
        [f"systems whose driving costs at most {AS_CHEAP} times the optimal", f"{cheap} of {len(cost)}"],
        ["steps", f"{read('control_quality', 'steps'):,}"],
        ["time, evaluations included", f"{read('control_quality', 'seconds') / 60:.1f} min"],
        ["memory, measured", f"{peak:.1f} MiB{_above(peak, predicted)}"],
        ["memory, predicted", f"{predicted:.1f} MiB"],
    ]
    command = "python benchmarks/control_quality.py --data windows.h5" + (" -- " + " ".join(words) if words else "")
    return table(["", ""], rows) + "\n" + source("control_quality", command)


def control_families() -> str:
    """Returns a table of every family's R^2 and of what driving it costs, the best first."""
    cost = read("control_quality", "cost")
    ranked = sorted(read("control_quality", "r2").items(), key=lambda row: -row[1])
    rows = [[name, f"{r2:.4f}", "lost" if cost[name] is None else f"{cost[name]:.2f} x"] for name, r2 in ranked]
    return table(["system", "R^2", "cost of driving, median"], rows)


AS_CHEAP = 1.1


def _at_most(cost: Any, most: float) -> int:
    """Returns how many systems cost at most so much; one that was lost has none."""
    return sum(one is not None and one <= most for one in cost.values())


def recommend_memory() -> str:
    """Returns a table of what a frozen language model takes on chips, lever by lever."""
    rows = read("recommend_memory", "rows")
    presets, chips = (list(dict.fromkeys(row[key] for row in rows)) for key in ("preset", "chip"))
    of = {(row["preset"], row["chip"], row["row"]): row for row in rows}
    head = [
        "levers, each row with those above it",
        *(f"{p.removeprefix('recommend-')}, `{c}`" for p in presets for c in chips),
    ]
    lines = [
        [name, *(_planned(of[preset, chip, name]) for preset in presets for chip in chips)]
        for name in dict.fromkeys(row["row"] for row in rows)
    ]
    commit = read("recommend_memory", "conditions", "commit")[:8]
    where = "[results/recommend_memory.json](results/recommend_memory.json): `python benchmarks/recommend_memory.py`"
    return table(head, lines) + f"\nFrom {where} at {commit}."


def _planned(row: Any) -> str:
    if not row.get("fits"):
        return f"({row['floor_bytes'] / 2**30:.2f} GiB: does not fit)"
    about = "about " if row["source"] == "estimated" else ""
    return f"{about}{row['predicted_peak_bytes'] / 2**30:.2f} GiB, {1000 * row['step_seconds']:,.0f} ms"


def recommend_savings(preset: str, chip: str) -> str:
    """Returns a table of what the guide's three claims come to there: recomputing, bfloat16 arithmetic, its time."""
    rows = {
        row["row"]: row for row in read("recommend_memory", "rows") if (row["preset"], row["chip"]) == (preset, chip)
    }
    plain, remat, bfloat16, half, least = (
        rows[name]
        for name in (
            "default: float32, nothing recomputed",
            "+ blocks recomputed",
            "+ bfloat16 arithmetic",
            "+ frozen in bfloat16",
            "+ frozen in NF4",
        )
    )
    before, recomputed, rounded, in_16, in_4 = (
        row["predicted_peak_bytes"] for row in (plain, remat, bfloat16, half, least)
    )
    times, name = remat["step_seconds"] / bfloat16["step_seconds"], f"{preset.removeprefix('recommend-')} on `{chip}`"
    changed, saved, most = rounded / recomputed - 1, 1 - in_16 / rounded, 1 - in_4 / rounded
    return (
        f"* {name}: recomputing saves {_share(1 - recomputed / before)}; bfloat16 arithmetic changes that by"
        f" {_share(changed, signed=True)} and is {times:.1f} times as fast; frozen weights in bfloat16 save"
        f" {_share(saved)} of what is left, in NF4 {_share(most)}."
    )


def small_stories() -> str:
    """Returns a small model that was trained on one text beside a published one of its size."""
    held_out, whole = read("small_stories", "held_out"), read("small_stories")
    options = whole["conditions"]["options"]["options"]
    names = {"ours": f"plimsoll, {whole['parameters']:,} parameters, {whole['minutes']:.0f} minutes"}
    names["published"] = "the published checkpoint of 656K"
    rows = [[names[side], f"{found['bits_per_byte']:.4f}"] for side, found in held_out.items()]
    peaks = (f"{whole[name] / MIB:.1f}" for name in ("predicted_bytes", "peak_bytes"))
    return (
        f"{table(['', 'bits a byte, held out'], rows)}\n"
        f"`plimsoll train stories {options}`, {' MiB predicted, '.join(peaks)} measured.\n"
        f"{source('small_stories', 'python benchmarks/small_stories.py --text STORIES.txt --checkpoint FOLDER')}"
    )


def text_vs_trainer() -> str:
    """Returns a small language model beside `transformers.Trainer`: tokens a second, peak of the process, goals."""
    rows = []
    for name, found in read("text_vs_trainer", "results").items():
        ours, peer = found["medians"]["plimsoll"], found["medians"]["peer"]
        speed = ours["tokens_per_second"] / peer["tokens_per_second"]
        memory = ours["peak_resident_bytes"] / peer["peak_resident_bytes"]
        goals = (
            f"{found['configuration'][f'goal_{of}']:g} x, {'met' if found['met'][of] else '**missed**'}"
            for of in ("speed", "memory")
        )
        rows.append(
            [
                name,
                f"{peer['tokens_per_second']:,.0f}",
                f"{ours['tokens_per_second']:,.0f} ({speed:.2f} x)",
                next(goals),
                f"{peer['peak_resident_bytes'] / MIB:,.0f} MiB",
                f"{ours['peak_resident_bytes'] / MIB:,.0f} ({memory:.2f} x)",
                next(goals),
            ]
        )
    head = ["", "Trainer, tokens/s", "plimsoll", "goal, at least", "Trainer, peak", "plimsoll", "goal, at most"]
    options = read("text_vs_trainer", "conditions", "options")
    named = " ".join(re.findall(r"[\w-]+", options["configurations"]))
    counts = f"--rounds {options['rounds']} --steps-small {options['steps_small']}"
    command = f"python benchmarks/text_vs_trainer.py --configurations {named} {counts}"
    return f"{table(head, rows)}\n{source('text_vs_trainer', command)}"


def device() -> str:
    """Parts of benchmarks/device.py that trained: bytes and seconds, promised beside measured."""
    rows = []
    for name, part in read("device", "parts").items():
        run = part.get("result", {})
        if "predicted_bytes" not in run:
            continue
        predicted, measured, times = run["predicted_bytes"], run["measured_bytes"], run["step_seconds"]
        rows.append(
            [
                name,
                f"`{run['words']}`",
                f"{predicted / MIB:,.0f} MiB",
                f"{measured / MIB:,.0f} ({predicted / measured - 1:+.1%})",
                "unknown" if times["promised"] is None else f"{1e3 * times['promised']:,.1f}",
                f"{1e3 * times['measured']:,.1f}",
                f"{run['per_second']:,.0f} {run['unit']}",
                "unknown" if run["mfu"] is None else f"{run['mfu']:.0%}",
                f"{run['waited']:.0%}",
            ]
        )
    for name, part in read("device", "parts").items():
        peer = part.get("result", {})
        if "peak_bytes" in peer and "torch" in peer:
            memory, seconds = f"{peer['peak_bytes'] / MIB:,.0f}", f"{1e3 * peer['step_seconds']:,.1f}"
            rows.append(
                [
                    name,
                    f"torch {peer['torch']}",
                    "",
                    memory,
                    "",
                    seconds,
                    f"{peer['tokens_per_second']:,.0f} tokens",
                    "",
                    "",
                ]
            )
    head = ["", "plan", "predicted", "measured", "promised, ms", "measured, ms", "a second", "MFU", "waited"]
    chip = read("device", "conditions").get("chip", "a card")
    return (
        f"{chip[0].upper()}{chip[1:]}; {card_rates()}\n\n{table(head, rows)}\n"
        f"{source('device', 'python benchmarks/device.py --minutes 25')}"
    )


def device_in_words() -> str:
    """Returns what a card was seen to do as one line of a list."""
    parts = read("device", "parts")
    runs = {name: run for name in parts if "predicted_bytes" in (run := parts[name].get("result", {}))}
    off = max(abs(run["predicted_bytes"] / run["measured_bytes"] - 1) for run in runs.values())
    ours, peer = runs["medium, found"], parts["torch.compile, 97.5M"]["result"]
    speed, share = ours["per_second"] / peer["tokens_per_second"], ours["measured_bytes"] / peer["peak_bytes"]
    alike = "a killed run's bits the same" if parts["exact"]["result"]["equal"] else "a killed run's bits others"
    chip = read("device", "conditions", "chip").partition(",")[0].replace("NVIDIA ", "")
    micro, times = (ours["plan"][name] for name in ("micro_batch", "accumulation"))
    return (
        f"* **{chip[0].upper()}{chip[1:]}**: of {len(runs)} plans [bytes right to {off:.1%},"
        f" {alike}](docs/chips.md#training-on-the-gpu-that-is-here); at {peer['parameters'] / 1e6:.1f}M parameters"
        f" {speed:.2f} times the tokens/s of `torch.compile` in {share:.2f} of its memory (ours {micro} x {times}"
        f" windows, its {micro * times} at once), by a version that no commit has."
    ).replace("%,", " %,", 1)


def card_rates() -> str:
    """Returns what `plimsoll doctor` measured of the card beside its data sheet, and whether two equal runs were."""
    parts = read("device", "parts")
    said = []
    if doctor := parts.get("doctor", {}).get("result"):
        measured, sheet = doctor["jax"], doctor["sheet"]
        named = {
            name: f"{measured['flops'][name] / 1e12:,.0f} of {sheet['flops'][name] / 1e12:,.0f} TFLOP/s in {name}"
            for name in ("bfloat16", "tf32", "float32")
        }
        copies = measured["copy_bytes_per_second"] / 1e12, sheet["copy_bytes_per_second"] / 1e12
        said.append(f"`plimsoll doctor`: {', '.join(named.values())}, copies {copies[0]:.1f} of {copies[1]:.1f} TB/s.")
    if exact := parts.get("exact", {}).get("result"):
        equal = "have the same fingerprint" if exact["equal"] else "differ"
        said.append(f"Two equal runs of 60 steps and one that was killed and continued {equal}.")
    return " ".join(said)


FINETUNE_MODELS = {
    "llama-3.1-8b": "Llama-3.1-8B", "qwen2.5-7b": "Qwen2.5-7B", "gemma-2-9b": "Gemma-2-9B",
    "llama-3.2-3b": "Llama-3.2-3B",
}  # fmt: skip
FINETUNE_VARIANTS = {"plain": "", "host": ", moments on the host", "no-host": ", nothing on the host"}


def finetune_context() -> str:
    """The longest contexts of QLoRA by the compiler: a line for each model, and tokens that fit on cards."""
    rows = []
    for shape, variants in read("finetune_context", "shapes").items():
        for variant, found in variants.items():
            base, slope = found["bytes"] / 1e9, found["bytes_per_token"] / 1e6
            name = FINETUNE_MODELS[shape] + FINETUNE_VARIANTS[variant]
            longest = max(row["tokens"] for row in found["rows"])
            fits = [
                f"{count:,}" + (" (extrapolated)" if count > longest else "") if count else "-"
                for count in found["tokens"].values()
            ]
            rows.append([name, f"{base:.2f} GB + {slope:.4f} MB", *fits])
    head = ["model", "device bytes + those of a token", "8 GB: tokens", "24 GB", "80 GB"]
    return table(head, rows)


def finetune_lengths() -> str:
    """The same by length, block inputs on the host: bytes of the device and of the host, and a step's time."""
    shapes = read("finetune_context", "shapes")
    lengths = [row["tokens"] for row in next(iter(shapes.values()))["plain"]["rows"]]
    rows = []
    for shape, variants in shapes.items():
        cells = [
            f"{row['device_bytes'] / 1e9:.2f}, {row['host_bytes'] / 1e9:.1f}, {_seconds(row['step_seconds'])}"
            for row in variants["plain"]["rows"]
        ]
        rows.append([FINETUNE_MODELS[shape], *cells])
    head = ["device GB, host GB, a step", *(f"{length:,}" for length in lengths)]
    shapes_named, variants_named = " ".join(shapes), " ".join(next(iter(shapes.values())))
    command = f"python benchmarks/finetune_context.py --shape {shapes_named} --variant {variants_named}"
    return table(head, rows) + "\n" + source("finetune_context", command)


def _seconds(seconds: float) -> str:
    from plimsoll.units import format_seconds

    return format_seconds(seconds)


def finetune_published(part: str) -> str:
    """Published peaks of fine-tuning beside our compiled plans for the same."""
    rows = {"t4": _finetune_t4, "torchtune": _finetune_torchtune, "litgpt": _finetune_litgpt}[part]()
    return rows + "\n" + source("finetune_published", "python benchmarks/finetune_published.py")


def _levers(plan: Any) -> str:
    from plimsoll.levers.registry import in_words, plain

    own = {name: value for name, value in plan.items() if name in plain() and name not in ("prefetch", "async_save")}
    return in_words(own)


def _finetune_t4() -> str:
    rows = []
    for row in read("finetune_published", "t4"):
        plan = row["plan"]
        batch = f"{plan['micro_batch']} x {plan['accumulation']}"
        cells = [f"{row['predicted_peak_bytes'] / MIB:,.0f} MiB", _seconds(row["step_seconds"]), _levers(plan)]
        rows.append([row["model"].split("/")[1], str(row["batch"]), batch, *cells])
    return table(["model", "batch that failed", "ours", "device", "a step", "levers"], rows)


def _finetune_torchtune() -> str:
    rows = []
    for row in read("finetune_published", "torchtune"):
        ours, host = row["predicted_peak_bytes"] / 2**30, row["host_bytes"] / 2**30
        rows.append(
            [row["name"], row["words"], f"{row['published_gib']:.1f}", f"{ours:.1f}", f"{host:.1f}",
             _seconds(row["step_seconds"])]
        )  # fmt: skip
    return table(["rung", "it adds", "torchtune, GiB", "ours, GiB", "our host, GiB", "our step, estimated"], rows)


def _finetune_litgpt() -> str:
    rows = []
    for row in read("finetune_published", "litgpt"):
        what = f"{row['model'].split('/')[1]}, {row['method']}, {row['micro_batch']}"
        ours = row["predicted_peak_bytes"] / 1e9
        rows.append([what, f"{row['published_gb']:.2f}", f"{ours:.2f}", _levers(row["plan"])])
    return table(["model, method, micro-batch", "litgpt, GB", "ours, GB", "levers"], rows)


def beside_peft() -> str:
    """LoRA on this CPU beside PEFT and transformers, and how far the losses are apart."""
    medians, ratios = read("finetune_beside_peft", "medians"), read("finetune_beside_peft", "ratios")
    rows = [
        [name, f"{side['tokens_per_second']:,.0f}", f"{side['peak_resident_bytes'] / MIB:,.0f} MiB"]
        for name, side in (("PEFT, transformers", medians["peer"]), ("plimsoll", medians["plimsoll"]))
    ]
    rows.append(["ratio", *(f"{ratios[name]:.2f}" for name in ("tokens_per_second", "peak_resident_bytes"))])
    apart = read("finetune_beside_peft", "largest_difference_of_losses")
    told = f"Losses of the same step differ by at most {100 * apart:.2g} %."
    return table(["", "tokens/s", "peak, resident"], rows) + "\n".join(
        ["", told, source("finetune_beside_peft", "python benchmarks/finetune_beside_peft.py --rounds 3")]
    )


def beside_trainer_in_words() -> str:
    """Returns small language models on this CPU beside `transformers.Trainer` as one line of a list."""
    every = [found["medians"] for found in read("text_vs_trainer", "results").values()]
    names = ("tokens_per_second", "peak_resident_bytes")
    faster, shares = ([each["plimsoll"][name] / each["peer"][name] for each in every] for name in names)
    set_to = [found["configuration"]["goal_memory"] for found in read("text_vs_trainer", "results").values()]
    return (
        f"* **Small language models there**, beside transformers' Trainer at its own batch: {min(faster):.2f} to"
        f" {max(faster):.2f} times the speed, in {min(shares):.2f} to {max(shares):.2f} of its memory by budgets of"
        f" {min(set_to)} to {max(set_to)}, ours in smaller micro-batches"
        f" ([{len(every)} configurations](docs/why-not.md#what-was-measured))."
    )


def beside_peft_in_words() -> str:
    """Returns LoRA on this CPU beside PEFT as one line of a list."""
    ratios = read("finetune_beside_peft", "ratios")
    faster, bytes_share = (f"{ratios[name]:.2f}" for name in ("tokens_per_second", "peak_resident_bytes"))
    rows, plan = read("finetune_beside_peft", "conditions", "options", "rows"), _plan_beside_peft()
    return (
        f"* **LoRA of 135M there**, beside PEFT: {faster} times the speed, {bytes_share} of the memory (ours"
        f" {plan['micro_batch']} x {plan['accumulation']} rows, recomputing; PEFT's {rows} at once)"
        " ([how](docs/finetune.md#beside-what-others-publish))."
    )


def _plan_beside_peft() -> Any:
    """Returns the plan of every round of benchmarks/finetune_beside_peft.py."""
    first, *others = [each["plimsoll"]["plan"] for each in read("finetune_beside_peft", "rounds")]
    assert all(other == first for other in others)
    return first


def _share(share: float, *, signed: bool = False) -> str:
    return (f"{share:+.0%}" if signed else f"{share:.0%}").replace("%", " %")


def sizes() -> str:
    """Shapes of the decoder for some numbers of parameters, from the function that recipes ask."""
    from plimsoll.models.sizing import sized
    from plimsoll.units import format_count

    rows = []
    for target, vocabulary in ((500_000, 4096), (10**6, 4096), (5 * 10**6, 4096), (25 * 10**6, 32768), (10**8, 32768)):
        s = sized(target, vocab=vocabulary)
        numbers = (vocabulary, s.width, s.layers, s.heads, s.inner, s.parameters())
        rows.append([format_count(target), *(f"{number:,}" for number in numbers)])
    return table(["target", "vocabulary", "width", "layers", "heads", "inner", "parameters"], rows)


def nearest_shapes(target: int, vocabulary: int) -> str:
    """Returns what is said of a number of parameters that no shape comes near to."""
    from plimsoll.errors import RecipeError
    from plimsoll.models.sizing import sized

    try:
        sized(target, vocab=vocabulary)
    except RecipeError as refusal:
        return f"`{refusal}`."
    raise AssertionError(f"there is a shape of {target:,} parameters with a vocabulary of {vocabulary:,}")


def shown(command: str) -> str:
    """A command that takes no time, run now, and all it says."""
    program = "from plimsoll.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    words = command.split()[1:]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    return f"\n```text\n$ {command}\n{done.stdout.rstrip()}\n```\n"


def house() -> str:
    """The rooms of the package from the top floor down, each with its first line and the rooms that it may import."""
    measuring = _module(RESULTS.parents[1] / "benchmarks/house.py")
    allowed = measuring.table_of_rooms()
    floors = measuring.floors(allowed)
    rows = [
        [f"{len(floors) - at}", f"`{room}`", _cell(measuring.first_line(room)), _rooms(allowed.rooms[room])]
        for at, rooms in enumerate(floors)
        for room in rooms
    ]
    loose = [[f"`{name}`", _cell(measuring.first_line(name)), _rooms(others)] for name, others in allowed.loose.items()]
    return (
        table(["floor", "room", "what it holds", "may import"], rows)
        + f"\nEvery room may import {_rooms(allowed.ground)}, too. In no room:\n"
        + table(["module", "what it holds", "may import"], loose)
    )


def _cell(text: str) -> str:
    """Text for a cell of a table, in which a bar would end it."""
    return text.replace("|", "\\|")


def _rooms(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def _module(path: Path) -> Any:
    """A program outside of the package, imported from its file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded
