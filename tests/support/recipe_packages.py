"""The example package of docs/your-own.md, installed into a folder with the metadata that an installer writes."""

import shutil
import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs/examples/plimsoll-waves"


def installed_into(site):
    """The folder, which then has to be on the path."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "plimsoll_waves", site / "plimsoll_waves")
    (points,) = project["entry-points"].items()
    describe(site, project["name"], project["version"], *points)
    return site


def describe(site, name, version, group, entries):
    """Writes the metadata of a distribution."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    lines = [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
