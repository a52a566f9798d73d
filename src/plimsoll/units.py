"""Parses bytes, counts and times from text, and formats them for people.

Inside the package sizes are `int` bytes; only printed text has units, like "3.1 GiB".
"""

import math
import re
from string import ascii_letters

from plimsoll.errors import RecipeError

LIKELY_MIB = 128
"""Least number without unit for which a message suggests MiB. For less it suggests GiB: most GPUs have fewer GiB."""
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_SIZES = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_SIZES |= {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZES |= {"K": KIB, "M": MIB, "G": GIB, "T": TIB}
_COUNTS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}
_TIMES = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}


def _parse(text: str, factors: dict, *, what: str, example: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:[eE][0-9]+)?)\s*([A-Za-z]*)", text.strip().replace("_", ""))
    factor = {name.upper(): value for name, value in factors.items()}.get(match[2].upper()) if match else None
    if match is None or factor is None:
        units = ", ".join(name for name in factors if name)
        raise RecipeError(f"{what} {text!r} cannot be read: write a number and one of {units}, like {example}")
    value = float(match[1]) * factor
    if math.isinf(value):  # 1e400
        raise RecipeError(f"{what} {text!r} is too large to be counted: write one like {example}")
    return value


def parse_bytes(text: str | float) -> int:
    """Parses a size: `2GiB` and `2G` are 2 x 2^30, `2GB` is 2 x 10^9, and a bare number is bytes.

    Raises RecipeError for other texts.
    """
    return int(_parse(str(text), _SIZES, what="the size", example="768MiB or 2GB"))


def parse_budget(text: str | float, *, option: str = "--memory") -> int:
    """Parses a memory budget by `parse_bytes`. Raises RecipeError below 1 MiB, where the unit must be wrong."""
    try:
        size = parse_bytes(text)
    except RecipeError as problem:
        raise RecipeError(f"{option}: {problem}") from None
    if size < MIB and isinstance(text, str):
        raise RecipeError(f"{option} {too_small(text, 'no process')}")
    if size < MIB:
        keyword = option.lstrip("-").replace("-", "_")
        meant = with_unit(float(text))
        raise RecipeError(
            f'{keyword}={text} is {format_bytes(size)}, and no process is that small: {keyword}="{meant}"?'
        )
    return size


def too_small(text: str | float, what: str) -> str:
    """Returns the error message for a size below 1 MiB, with a likely correction: `400 is 400 B, ...: 400MiB?`.

    Args:
        text: The typed size.
        what: Subject of the clause "is that small", like "no process".
    """
    typed = str(text).strip()
    number = float(typed.rstrip(ascii_letters).rstrip())
    advice = f"{with_unit(number)}?" if number >= 1 else "give MiB or GiB, like 768MiB"
    return f"{typed} is {format_bytes(parse_bytes(text))}, and {what} is that small: {advice}"


def with_unit(number: float) -> str:
    """Returns a number with its likely unit: `8GiB`, `400MiB`."""
    return f"{number:g}{'GiB' if number < LIKELY_MIB else 'MiB'}"


def as_read(text: str | float) -> str | None:
    """Returns a clause like `2G is read as 2.0 GiB` for a size with an ambiguous unit; None for other sizes."""
    typed = str(text).strip()
    unit = re.search(r"[A-Za-z]+$", typed)
    if unit is None or unit[0].upper() in {"KIB", "MIB", "GIB", "TIB"}:
        return None
    return f"{typed} is read as {format_bytes(parse_bytes(typed))}"


def parse_count(text: str | int) -> int:
    """Parses a count: `124M` is 124,000,000. k, M and B are decimal, in either case. Raises RecipeError otherwise."""
    count = _parse(str(text), _COUNTS, what="the count", example="1.3M")
    if abs(count - round(count)) > 1e-6 * count:  # tolerates floating-point errors, as of 1.3M
        raise RecipeError(f"{count:g} is no whole number: write one, like 1500 or 1.3M")
    return round(count)


def parse_seconds(text: str | float) -> float:
    """Parses a time in seconds: `90`, `90s`, `1.5min`, `2h`. Raises RecipeError otherwise."""
    return _parse(str(text), _TIMES, what="the time", example="90s, 3min or 2h")


def format_bytes(size: float) -> str:
    """Formats a size in bytes with one decimal, like `3.1 GiB`."""
    sign, size = ("-" if size < 0 else ""), abs(size)
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            return f"{sign}{size / factor:.1f} {unit}"
    return f"{sign}{size:.0f} B"


def format_budget(size: int) -> str:
    """Formats a size for `--memory`, rounded up to whole MiB, or to whole GiB from 64 GiB on."""
    if size < 64 * GIB:
        return f"{-(-size // MIB)}MiB"
    return f"{-(-size // GIB)}GiB"


def format_count(count: float) -> str:
    """Formats a count with three significant digits, like `1.24M`."""
    for unit, factor in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= 0.9995 * factor:  # 999,999 is 1M, not 1e+03k
            return f"{count / factor:.3g}{unit}"
    return f"{count:.0f}"


def format_seconds(seconds: float) -> str:
    """Formats a time, like `1.5 min` or `12 ms`; with two significant digits below 10 ms, like `0.42 ms`."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 90:
        return f"{seconds / 60:.1f} min"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"


def whole_number(text: str) -> int | None:
    """Returns the number written by one to nine ASCII digits; None for other text (`int` and `isdigit` accept more)."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None
