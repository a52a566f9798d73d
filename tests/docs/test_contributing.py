"""CONTRIBUTING.md says where a change goes: in files that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
OF_A_RUN = {"ledger.json", "plan.json", "recipe.json"}


def test_every_file_it_names_exists():
    named = {*re.findall(r"`([\w/.]+\.(?:py|toml|json))`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))}
    assert len(named) > 40
    tops = (ROOT / top for top in ("src", "tests", "benchmarks", "docs"))
    places = [f"{place}" for top in tops for place in top.rglob("*.*")] + [f"{place}" for place in ROOT.iterdir()]
    missing = {path for path in named - OF_A_RUN if not any(place.endswith(f"/{path}") for place in places)}
    assert missing == set()
