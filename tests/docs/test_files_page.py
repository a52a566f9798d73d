"""docs/files.md names what the code writes: keys of the ledger and the plan, files of a run, variables, exit codes."""

import re
import signal
from dataclasses import fields
from pathlib import Path

import pytest

from plimsoll.errors import PlimsollError, StoppedError
from plimsoll.files.provenance import SESSIONS
from plimsoll.files.run_folder import POSITION, SEAL, SEALED
from plimsoll.planned import Ledger, Planned, RunLedger
from plimsoll.training import overruns
from plimsoll.training.schedule import SINCE_BEST

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/files.md").read_text("utf-8")
DERIVED = {"fits", "verdict", "predicted_peak_bytes"}
"""Keys that `Planned.to_dict` adds to its fields."""


def block(heading):
    """Returns the first words of the lines of a section's code block."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.search(r"```text\n(.*?)```", section, re.DOTALL)[1].splitlines()
    return {name.strip() for line in lines for name in line.split("  ", 1)[0].split(",")}


def test_the_keys_of_the_ledger_are_all_there():
    assert block("ledger.json") == {field.name for field in fields(RunLedger)}


def test_the_keys_of_a_plan_are_keys_of_one():
    assert block("plan.json") <= DERIVED | {field.name for part in (Planned, Ledger) for field in fields(part)}


def test_files_of_a_run_are_there():
    wanted = {*SEALED, SEAL, SESSIONS, overruns.FILE, "recipe.json", "plan.json", "ledger.json", "metrics.jsonl"}
    assert wanted <= block("The run folder")
    assert POSITION in PAGE


def test_variables_are_those_of_the_code():
    sources = (ROOT / "src").rglob("*.py")
    named = {name for path in sources for name in re.findall(r"PLIMSOLL_[A-Z_]+[A-Z]", path.read_text("utf-8"))}
    assert set(re.findall(r"PLIMSOLL_[A-Z_]+[A-Z]", PAGE)) == named


@pytest.mark.parametrize(
    "code",
    [0, PlimsollError.exit_code, StoppedError.exit_code]
    + [128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGABRT, signal.SIGKILL)],
)
def test_exit_codes_are_there(code):
    codes = re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE)
    assert str(int(code)) in ", ".join(codes).split(", ")


def test_the_column_of_patience_is_there():
    assert f"`{SINCE_BEST}`" in PAGE
