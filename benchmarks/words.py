"""The words measured: sentences of the public API's docstrings and of every help text, and what they tell a caller.

    python benchmarks/words.py [--json]

Counts words and prepositions of each sentence, texts that begin with a preposition or conjunction (which leave out what
they are about), and, of public functions and methods, those whose docstring has an entry in `Args:` for every
parameter, says what is returned, and has an example. Prints a Markdown table with the goals beside it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import plimsoll
from plimsoll.cli.help import field_texts, options_shown

PREPOSITIONS = {
    *("about", "above", "across", "after", "against", "along", "among", "around", "as", "at", "before", "behind"),
    *("below", "beneath", "beside", "besides", "between", "beyond", "by", "down", "during", "for", "from", "in"),
    *("inside", "into", "like", "near", "of", "off", "on", "onto", "out", "outside", "over", "past", "per", "since"),
    *("through", "to", "toward", "towards", "under", "until", "up", "upon", "with", "within", "without"),
}
BEGINNINGS = PREPOSITIONS | {"and", "but", "or", "so", "if", "that", "what", "where", "whether", "which", "who", "when"}
BEGINNINGS = (BEGINNINGS | {"how", "those", "less", "likewise", "than"}) - {"like"}
"""First words that leave out what a text is about: those of benchmarks/house.py, and the other prepositions."""
LONG = 30
"""Words of a sentence, at most."""
SECTION = re.compile(r"^\s*(Args|Returns|Raises|Attributes|Example):\s*$", re.MULTILINE)


class Row(NamedTuple):
    """A line of the table."""

    what: str
    count: str
    goal: str


def members() -> dict[str, set[str] | None]:
    """Returns the members of each class that the API page shows; None for all of them without an underscore."""
    page = (Path(__file__).resolve().parents[1] / "docs/api.md").read_text("utf-8")
    shown = re.findall(r"^\.\. auto\w+:: plimsoll\.(\w+)\n((?:   :.*\n)*)", page, re.MULTILINE)
    listed = {name: re.search(r":(?:special-)?members:(.*)", options) for name, options in shown}
    return {
        name: set() if found is None else {part.strip() for part in found[1].split(",")} - {""} or None
        for name, found in listed.items()
    }


def public_objects() -> Iterator[tuple[str, Any]]:
    """Yields public functions, classes, and those of their methods and properties that the API page shows."""
    for name, shown in members().items():
        value = getattr(plimsoll, name)
        yield name, value
        if inspect.isclass(value):
            for member, part in vars(value).items():
                if isinstance(part, FunctionType | property) and (
                    not member.startswith("_") if shown is None else member in shown
                ):
                    yield f"{name}.{member}", part


def docstrings() -> list[tuple[str, str]]:
    """Returns names and docstrings of public objects, and the texts below public fields."""
    texts = [(name, inspect.cleandoc(value.__doc__ or "")) for name, value in public_objects()]
    for name, shown in members().items():
        if inspect.isclass(value := getattr(plimsoll, name)) and shown is None:
            texts += [(f"{name}.{field}", text) for field, text in field_texts(value).items()]
    return texts


def help_texts() -> list[tuple[str, str]]:
    """Returns options and their help texts, each text once."""
    from plimsoll.cli.completion import BY_RECIPE, OTHERS
    from plimsoll.cli.prepare import every_options
    from plimsoll.recipes.registry import PRESETS, preset

    shown = [option for kind in (*OTHERS.values(), *every_options().values()) for option in options_shown(kind)]
    for name in PRESETS:
        shown += [option for kind in BY_RECIPE.values() for option in options_shown(kind, preset(name))]
    unique = {option.text: option.usage for option in shown}
    return [(usage, re.sub(r" \((default: .*|required)\)$", "", text)) for text, usage in unique.items()]


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text, without sections' titles and examples."""
    text = re.split(r"^\s*Example:\s*$", text, flags=re.MULTILINE)[0]
    text = SECTION.sub("", text)
    text = re.sub(r"^ {4,8}(\*{0,2}\w+): ", r"\n", text, flags=re.MULTILINE)  # names of parameters
    parts = (part for block in re.split(r"\n\s*\n|\n(?=\n)", text) for part in re.split(r"(?<=[.!?;])\s+(?=\S)", block))
    return [" ".join(part.split()) for part in parts if re.search(r"[a-z]{2}", part)]


def words(sentence: str) -> list[str]:
    return re.findall(r"[A-Za-z0-9_`'./=-]*[A-Za-z0-9][A-Za-z0-9_`'./=-]*", sentence)


def style(label: str, texts: Sequence[tuple[str, str]]) -> list[Row]:
    """Returns the rows about sentences of these texts."""
    split = [words(sentence) for _, text in texts for sentence in sentences(text)]
    lengths = sorted(map(len, split))
    prepositions = sum(word.lower().strip("`.") in PREPOSITIONS for sentence in split for word in sentence)
    begins = [name for name, text in texts if (first := words(text)) and first[0].lower() in BEGINNINGS]
    long = sum(length > LONG for length in lengths)
    return [
        Row(f"{label}: texts; sentences", f"{len(texts)}; {len(split)}", ""),
        Row(f"{label}: words a sentence, median / p90 / most", _spread(lengths), f"at most {LONG}"),
        Row(f"{label}: sentences of more than {LONG} words", f"{long / len(split):.1%}", "0 %"),
        Row(f"{label}: prepositions a sentence", f"{prepositions / len(split):.2f}", ""),
        Row(
            f"{label}: texts that begin with a preposition or conjunction", f"{len(begins) / len(texts):.1%}", "<= 2 %"
        ),
        Row(f"{label}: texts that are empty", str(sum(not text.strip() for _, text in texts)), "0"),
    ]


def _spread(values: Sequence[int]) -> str:
    return f"{statistics.median(values):.0f} / {values[int(0.9 * (len(values) - 1))]} / {values[-1]}"


def for_callers() -> list[Row]:
    """Returns the rows about what docstrings of public functions and methods tell a caller."""
    with_parameters, named, returning, told, classes, examples = 0, 0, 0, 0, 0, 0
    for name, value in public_objects():
        doc = inspect.cleandoc(value.__doc__ or "")
        if "." not in name:
            classes, examples = classes + 1, examples + (">>>" in doc)
        if not isinstance(value, FunctionType):
            continue
        signature = inspect.signature(value)
        parameters = [parameter for parameter in signature.parameters if parameter != "self"]
        if parameters:
            with_parameters += 1
            named += all(re.search(rf"^ +\*{{0,2}}{parameter}: ", doc, re.MULTILINE) for parameter in parameters)
        if signature.return_annotation not in (None, "None", inspect.Signature.empty):
            returning += 1
            told += "Returns:" in doc or doc.startswith(("Returns", "Yields"))
    return [
        Row("public callables with parameters: `Args:` has every one", _of(named, with_parameters), ">= 90 %"),
        Row("public callables that return something: the docstring says what", _of(told, returning), ">= 90 %"),
        Row("public names with an example", _of(examples, classes), "100 %"),
    ]


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / max(1, whole):.0%})"


def rows() -> list[Row]:
    """Returns the whole table."""
    return [*style("docstrings", docstrings()), *style("help", help_texts()), *for_callers()]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    table = rows()
    if options.json:
        print(json.dumps({row.what: row.count for row in table}))
        return 0
    lines = [("what", "counted", "goal"), ("---", "--:", "--:"), *table]
    print("\n".join("| " + " | ".join(line) + " |" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
