"""Page of one run."""

from __future__ import annotations

from statistics import median

from plimsoll.report.layout import UNKNOWN, format_rate, format_share, known
from plimsoll.report.page import learning
from plimsoll.report.page.blocks import Block, Columns, Command, Items, Rows, Table, Text, page
from plimsoll.report.page.exhibits import blocks_of
from plimsoll.report.page.plans import bytes_by_part, plan_blocks
from plimsoll.report.page.recorded import Recorded
from plimsoll.report.page.units import used_of
from plimsoll.report.tables import PROCESS_CELLS, overrun_words
from plimsoll.units import MIB, format_bytes, format_count, format_seconds


def run_page(run: Recorded, *, footer: str) -> str:
    """Returns the page of a run. `footer` is its last line."""
    examples = [blocks_of(exhibit) for exhibit in run.exhibits]
    sections = [
        ("The line", _memory(run)),
        ("What it learned", [*learning.learning(run), learning.last_values(run)]),
        ("What it makes", [Columns(examples), Items(title="Left out", items=run.left_out)]),
        ("How fast", [learning.speed(run), *_processes(run)]),
        ("The plan", plan_blocks(run.planned) if run.planned else [Text("This run has no plan yet.")]),
        ("Again", [Columns([_commands(run), [_conditions(run)]], "wide")]),
    ]
    return page(title=run.name, verdict=_verdict(run), facts=facts(run), sections=sections, footer=footer)


def facts(run: Recorded) -> list[tuple[str, str]]:
    """Returns the figures at the top of a page, which the page of several runs compares."""
    loss, best, unit = run.columns.get("loss"), run.best(), run.rate_unit
    rates = run.columns[f"{unit}_per_second"].finite() if unit else []
    return [
        ("peak, measured", used_of(run.measured_peak_bytes, run.budget_bytes)),
        ("training loss, last", f"{loss.values[-1]:.4f}" if loss else UNKNOWN),
        ("validation loss, best", f"{best[1]:.4f} at step {best[0]:,}" if best else "no validation yet"),
        ("throughput, median", format_rate(median(rates), str(unit)) if rates else UNKNOWN),
        ("time", known(run.elapsed_seconds or None, format_seconds)),
        ("parameters", format_count(run.planned["parameters"]) if run.planned else UNKNOWN),
    ]


def _verdict(run: Recorded) -> list[Block]:
    """Returns the run's state, and whether the peak stayed within the budget, which is the reader's first question."""
    steps = run.data.get("steps")
    total = f" of {steps:,}" if steps else ""
    progress = f"{run.state}, no step logged"
    if run.last_step is not None:
        progress = f"{run.state}, step {run.last_step:,}{total}"
    if run.state.startswith("stopped"):
        progress = f"{run.state}{total}"
    state = Text(f"{run.recipe_name}: {progress}.", "quiet")

    peak, budget, predicted = run.measured_peak_bytes, run.budget_bytes, run.planned.get("predicted_peak_bytes")
    if peak is None or not budget:
        return [state, Text("Its memory was not measured yet.", "verdict")]
    compared = ""
    if predicted and round(peak / MIB, 1) == round(predicted / MIB, 1):
        compared = " That is what was predicted."
    elif predicted:
        difference = f"{format_share(abs(peak - predicted), predicted)} {'more' if peak > predicted else 'less'}"
        compared = f" That is {difference} than the {format_bytes(predicted)} that were predicted."
    share = f"{format_bytes(peak)} of {format_bytes(budget)}"
    if peak > budget:
        excess = format_bytes(peak - budget)
        return [state, Text(f"Over the budget by {excess}: it took {share} at its peak.{compared}", "verdict over")]
    used = format_share(peak, budget)
    return [state, Text(f"Under the budget: {share} at its peak, {used} of the budget.{compared}", "verdict")]


def _memory(run: Recorded) -> list[Block]:
    """Returns the memory chart, the table of components, and the overruns and notes of the ledger."""
    chart = learning.memory(run)
    if not run.planned:
        return [chart]
    table = bytes_by_part(run.planned, run.ledger)
    if not run.ledger:
        table.append(Text("What each part took is measured when a session ends (ledger.json), and none has yet."))
    notes = [*map(overrun_words, run.ledger.get("overruns", ())), *run.ledger.get("notes", ())]
    return [Columns([[chart], table], "wide"), Items(title="Overruns and notes", items=notes)]


def _processes(run: Recorded) -> list[Block]:
    """Returns the table of the processes of the last session, the slowest first."""
    if not run.processes:
        return []
    title = "Its processes, the slowest first"
    rows = [[cell(row) for _, cell in PROCESS_CELLS.values()] for row in run.processes["processes"]]
    blocks: list[Block] = [Table(title=title, header=[*PROCESS_CELLS], rows=rows, caption=title, words=(1,))]
    straggler = run.processes.get("straggler")
    if straggler is not None:
        blocks.append(Text(f"The others wait for process {straggler} in every step."))
    return blocks


def _commands(run: Recorded) -> list[Block]:
    """Returns the commands that continue, repeat or use the run."""
    commands = {
        "Continues it": run.continue_command,
        "Repeats it, with the same plan": run.repeat_command,
        "Uses it": "\n".join(run.use_commands),
    }
    return [Command(title=title, command=command) for title, command in commands.items() if command]


def _conditions(run: Recorded) -> Rows:
    """Returns the conditions that the run ran under."""
    conditions = {
        "run": run.path,
        "chip": run.planned.get("plan", {}).get("chip", UNKNOWN),
        "seed": (run.recipe.get("fields") or {}).get("seed", UNKNOWN),
        "data": (run.data.get("facts") or {}).get("description", UNKNOWN),
        **run.chosen,
    }
    if run.sessions:
        conditions |= run.sessions[-1]
        conditions["sessions"] = f"{len(run.sessions):,}, the last of them above"
    rows = [(name.replace("_", " "), UNKNOWN if value is None else str(value)) for name, value in conditions.items()]
    return Rows(title="Under these conditions", rows=rows)
