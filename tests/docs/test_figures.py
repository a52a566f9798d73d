"""Figures that pages show: each is in its result file, and what is missing is said by name."""

import ast
import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(
    r"<!-- \[\[\[cog print\(figures\.(\w+)\((.*?)\)\) \]\]\] -->\n(.*?)<!-- \[\[\[end\]\]\] -->", re.DOTALL
)
ASKED = [
    (page.name, *found.groups())
    for page in [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
    for found in BLOCK.finditer(page.read_text("utf-8"))
]


def module(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


figures, keep, typed = module("figures"), module("keep"), module("typed")


@pytest.mark.parametrize(("page", "name", "words", "shown"), ASKED, ids=[f"{page}-{name}" for page, name, *_ in ASKED])
def test_a_page_shows_what_the_result_file_or_the_code_says(page, name, words, shown):
    """What `make docs` asks of cog, without cog."""
    call = ast.parse(f"of({words})", mode="eval").body
    assert isinstance(call, ast.Call)
    given = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    answer = getattr(figures, name)(*map(ast.literal_eval, call.args), **given)
    assert shown == answer + "\n", f"{page}: `make figures` writes it anew"


def test_pages_ask_for_figures():
    assert len(ASKED) >= 6


def test_a_figure_follows_its_file(tmp_path, monkeypatch):
    before = figures.window_price()
    changed = json.loads((DOCS / "results/longcontext.json").read_text())
    changed["rows"][1]["microseconds_per_token"] *= 2
    (tmp_path / "longcontext.json").write_text(json.dumps(changed))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert figures.window_price() != before


def test_a_run_has_its_last_step_and_a_peak_above_its_prediction_is_said(monkeypatch):
    """The last step need not be a logged one: it is that of the last evaluation, too."""
    assert ": 2,122 steps" in figures.trained("sudoku-9x9-hard")
    assert "above" not in figures.trained("long32")
    over = figures.read("run-long32")
    over["peak_bytes"] = round(1.021 * over["predicted_bytes"])
    monkeypatch.setattr(figures, "read", lambda *_: over)
    assert "(2.1 % above the prediction)" in figures.trained("long32")


def test_losses_by_position_are_in_the_order_of_positions():
    head, _, losses = figures.by_position("long32").strip().splitlines()
    assert head.startswith("| from token | 0 | 64 | 128 |")
    assert losses.count("|") == head.count("|")


def test_pictures_show_what_the_result_files_say(monkeypatch):
    """What `make docs` asks of docs/pictures.py."""
    monkeypatch.syspath_prepend(DOCS)
    drawn = module("pictures").pictures()
    assert {path: path.read_text("utf-8") for path in drawn} == drawn
    shown = {
        name for page in [DOCS.parent / "README.md"] for name in re.findall(r"pictures/[\w-]+\.svg", page.read_text())
    }
    assert shown == {f"pictures/{path.name}" for path in (DOCS / "pictures").iterdir()}


def test_a_picture_is_to_scale_and_its_text_fits(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    pictures = module("pictures")
    drawn, rungs = pictures.ladder("longcontext-nano"), figures.measured_rungs("longcontext-nano")
    for kind in ("measured", "predicted"):
        widths = re.findall(rf'<rect x="{pictures.LEFT}" [^>]*width="([\d.]+)"[^>]*class="{kind}"/>', drawn)[
            -len(rungs) :
        ]
        scales = [float(width) / rung[f"{kind}_peak_bytes"] for width, rung in zip(widths, rungs, strict=True)]
        assert scales == pytest.approx([scales[0]] * len(rungs), rel=2e-3)
    for left, text in re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="quiet">(\d.*?)</text>', drawn):
        assert float(left) + 7 * len(text) < pictures.WIDTH
    assert max(7 * len(rung["words"]) for rung in rungs) < pictures.LEFT


def test_a_figure_that_is_not_there_is_named():
    with pytest.raises(figures.MissingFigure, match=r"docs/results/nothing\.json is not there"):
        figures.read("nothing")
    with pytest.raises(figures.MissingFigure, match=r"trm\.json has no results / eye: attention, mlp"):
        figures.read("trm", "results", "eye", "peak_bytes")


def test_what_is_kept_has_no_paths_and_no_curves():
    measured = {
        "options": {"out": "/somewhere/a.json", "rounds": "5"},
        "rows": [{"losses": [0.0] * 101, "seconds": [1.5]}],
    }
    assert keep.kept(measured) == {"options": {"rounds": "5"}, "rows": [{"seconds": [1.5]}]}


@pytest.mark.parametrize("path", sorted((DOCS / "results").glob("*.json")), ids=lambda path: path.stem)
def test_kept_files_name_no_place_of_the_machine(path):
    result = json.loads(path.read_text("utf-8"))
    assert keep.kept(result) == result
    assert result["conditions"]["commit"]


def test_every_commit_that_a_result_names_is_in_the_history():
    """What `make docs` asks of docs/keep.py."""
    commits = keep.history()
    if isinstance(commits, str):
        pytest.skip(commits)
    lost = {
        path.stem: keep.unknown(json.loads(path.read_text("utf-8")), commits) for path in DOCS.glob("results/*.json")
    }
    assert {name: each for name, each in lost.items() if each} == {}


@pytest.mark.parametrize(
    ("result", "lost"),
    [
        ({"conditions": {"commit": "b049e8b3"}}, []),
        ({"conditions": {"commit": "b049e8b0"}}, ["b049e8b0"]),
        ({"rows": [{"commit": "b049e8b-dirty"}, {"commit": "1234567-dirty"}]}, ["1234567"]),
        ({"commits": {"slurm": "b049e8b3", "ray": "7654321"}}, ["7654321"]),
        ({"conditions": {"commit": "b049e8b3, with what 1234567 has"}}, ["1234567"]),
        ({"conditions": {"commit": None}, "fingerprint": "1234567"}, ["None"]),
    ],
)
def test_a_commit_that_is_not_there_is_found(result, lost):
    assert keep.unknown(result, ["b049e8b325a1f1b7866592dc42750b21221e6ba3"]) == lost


def git(*words, cwd):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *who, *words], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


def test_a_result_of_a_commit_that_is_not_there_is_not_kept(tmp_path, monkeypatch, capsys):
    """In a repository of its own, and in a shallow clone of it, which says why it cannot know."""
    whole, results, made = tmp_path / "whole", tmp_path / "whole/results", tmp_path / "made.json"
    results.mkdir(parents=True)
    git("init", "--quiet", cwd=whole)
    for at in range(2):
        git("commit", "--quiet", "--allow-empty", "--message", f"{at}", cwd=whole)
    first = git("rev-parse", "HEAD~1", cwd=whole)
    monkeypatch.setattr(keep, "RESULTS", results)
    made.write_text("{}")
    assert keep.main([str(made), "--commit", "0123456"]) == 1
    assert "0123456 is no commit of this history" in capsys.readouterr().err
    assert [*results.iterdir()] == []
    assert keep.main([str(made), "--commit", first[:8]]) == 0
    assert keep.main(["--check"]) == 0
    (results / "other.json").write_text(json.dumps({"conditions": {"commit": "0123456"}}))
    assert keep.main(["--check"]) == 1
    git("clone", "--quiet", "--depth", "1", whole.as_uri(), str(tmp_path / "shallow"), cwd=tmp_path)
    monkeypatch.setattr(keep, "RESULTS", tmp_path / "shallow")
    assert "shallow" in keep.history()
    assert keep.main(["--check"]) == 0
    assert "commits were not looked for: this clone is shallow" in capsys.readouterr().out
    monkeypatch.setattr(keep, "RESULTS", tmp_path)
    assert keep.history() == "git has no history here"


def test_other_troubles_of_a_torture_are_shown():
    shown = figures.tortures().splitlines()
    for line, name in zip(shown, ("torture", "torture_processes"), strict=True):
        assert f"other troubles: {figures.read(name, 'troubles')}." in line


def test_goals_that_are_missed_are_said(monkeypatch):
    assert figures._held([0.5, 0.6], 0.6) == "met by both (0.50 and 0.60)"
    assert figures._held([0.5, 0.61], 0.6) == "missed by one (0.50 and 0.61)"
    assert figures._held([0.97], 0.95) == "missed (0.97)"
    size = {"predicted": 110 * 2**20, "peaks": [100 * 2**20], "memory": 120 * 2**20, "budget": 90 * 2**20}
    rows = [{**size, "label": "code 32x1", "outcome": "refused", "commit": "1234567-dirty"}] * 3
    monkeypatch.setattr(figures, "read", lambda name, *_: rows if name == "prediction-text-1" else [])
    monkeypatch.setattr(figures, "_draws", lambda: ["text-1"])
    assert "median is missed by `text-1` (10.00 MiB, 10.0 %); that of the worst by none" in (
        told := figures.predictions_beside_goals()
    )
    assert "* 3 of the 3 that are measured, of `text-1`" in told
    assert " 3 of them were measured with changes" in figures.predictions_in_words()
    rows = [row | {"commit": "1234567"} for row in rows]
    assert figures.predictions_beside_goals().count("* ") == 1
    assert figures.predictions_in_words().endswith("0 of 3 refusals were too cautious.")
    assert "3 of them language models" in figures.predictions_in_words()
    assert "none over budget" in figures.predictions_in_words()
    rows[0] = rows[0] | {"peaks": [130 * 2**20]}
    assert "1 over budget" in figures.predictions_in_words()


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["measured", "measured"], "compiled and timed"),
        (["roofline", "kernels"], "compiled and not run, times of steps estimated"),
        (["measured", "kernels"], "compiled, steps timed of A and else estimated"),
    ],
)
def test_a_caption_says_timed_only_of_what_was_timed(sources, said):
    columns = [{"title": title, "step_seconds_source": source} for title, source in zip("AB", sources, strict=True)]
    assert figures._how_known(columns) == said


SAID = '<!-- typed: a lent card, log.md, "On a card" -->'


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("| a | 3.1 GiB |\n", [1]),
        ("| a | 12 ms |\n| b | 97 % |\n\ntext of 5 s\n", [1, 2]),
        ("| a | 500k tokens/s |\n", [1]),
        ("| a | 500,000 tokens/s |\n", [1]),
        ("| `--memory 3GiB` | 1,024 x 12 |\n", []),
        ("| a | 1.65 times |\n| b | many times |\n", [1]),
        ("| a | b | c |\n|--|--|--|\n| steps/s | 12 | 3 |\n| steps | 12 | 3 |\n| MiB | - | `3` |\n", [3]),
        ("| a | 1.43 x |\n| b | 1.43x |\n| c | 9x9, Llama 3.x, 2 layers |\n", [1, 2]),
        ("| a | 3.21 nats |\n| b | 440 TFLOP/s |\n| c | 3.3 GB/s |\n| d | 1.07 bits a byte |\n", [1, 2, 3, 4]),
        ("| a | **3.1 GiB** |\n| b | **3.1** GiB |\n| c | [12](#there) ms |\n", [1, 2, 3]),
        ("  | a | 3 s |\n> | a | 3 s |\n<td>3 s</td>\n", [1, 2, 3]),
        ("what | how long\n---|---\na | 3 s\nb | much\n\nc | 5 s\n", [3]),
        ("| a | seconds | of |\n|--|--:|--|\n| 1 | **2.5** | 3 |\n| 1 | - | 4 |\n", [3]),
        ("| a | MiB, predicted |\n|--|--:|\n| b | 700 |\n| c | `700` |\n", [3]),
        ("| the adapter's | users a step |\n|--|--:|\n| 64 | 32 |\n", []),
        ("<!-- [[[cog print(1) ]]] -->\n| a | 3 s |\n<!-- [[[end]]] -->\n| b | 4 s |\n", [4]),
        (f"{SAID}\n\n| a | 3 s |\n| b | 4 s |\n\ntext\n\n| c | 5 s |\n", [8]),
        (f"{SAID}\n\na | b\n--|--\nc | 5 s\n", []),
        (f"{SAID}\ntext\n| a | 3 s |\n", [3]),
        ("<!-- typed: -->\n| a | 3 s |\n", [2]),
        ("| a | 0.0090 | 12 |\n| b | **0.1** |\n| c | 0.0933, 0.0571 |\n| d | +1.5 (0.97) |\n", [1, 2, 3, 4]),
        ("| a | 0.10.2 | 12 | v1.5 | 1,024 |\n| b | `0.5` | 0.9 and 0.99 |\n", []),
        ("text\n\n```text\n$ plimsoll plan --memory 3GiB  # 3 GiB\npeak 3.0 GiB\nand 4.0 MiB\n```\n", [5]),
        (f"{SAID}\n\n```text\npeak 3.0 GiB\n```\n\n```text\npeak 3.0 GiB\n```\n", [8]),
        ("<!-- [[[cog print(1) ]]] -->\n```text\n3.0 GiB\n```\n<!-- [[[end]]] -->\n```text\n4 s 12 %\n```\n", [7]),
        ("```text\n| a | 3 |\n```\n| a | 3 s |\n", [4]),
        ('<!-- typed: log.md, "No such heading" -->\n| a | 3 s |\n', [1, 2]),
        ("<!-- typed: any words -->\n| a | 3 s |\n", [1, 2]),
    ],
)
def test_a_figure_in_a_table_is_found_unless_it_is_made_or_says_why_not(page, found):
    assert [number for number, _ in typed.typed(page, headings={"On a card"})] == found


@pytest.mark.parametrize(
    ("why", "known"),
    [
        ('of a lent card, log.md, "Seconds of a step on a card"', True),
        ('log.md, "Seconds of a step on a cart"', False),
        ("the paper, https://arxiv.org/abs/2510.04871", True),
        ("constants of planner/estimate.py", True),
        ("constants of planner/guess.py", False),
        ("what the command said at 1234567", True),
        ("what the command said at 7654321", False),
        ("somebody said so", False),
    ],
)
def test_a_typed_table_names_a_source_that_is_there(why, known):
    assert typed.names_source(why, typed.headings_of_log(), ["1234567890"]) is known
    assert typed.names_source("at 7654321", set()), "where nobody knows the history"
