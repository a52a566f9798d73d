"""Bytes, counts and times: parsed from what people type, printed as what people read.

Sizes are `int` bytes everywhere inside; only what is printed says "3.1 GiB".
"""

import math
import re

from plimsoll.errors import RecipeError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_SIZES = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_SIZES |= {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
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


def parse_bytes(text: str | int) -> int:
    """`2GiB` = 2 x 2^30, `2GB` = 2 x 10^9, a bare number is bytes."""
    return int(_parse(str(text), _SIZES, what="the size", example="768MiB or 2GB"))


def parse_count(text: str | int) -> int:
    """`124M` = 124,000,000: k, M and B are decimal, in either case."""
    return round(_parse(str(text), _COUNTS, what="the count", example="1.3M"))


def parse_seconds(text: str | float) -> float:
    """`90`, `90s`, `1.5min`, `2h`."""
    return _parse(str(text), _TIMES, what="the time", example="90s, 3min or 2h")


def format_bytes(size: float) -> str:
    """`3.1 GiB`; whole MiB below 10 GiB would hide what matters, so one decimal."""
    sign, size = ("-" if size < 0 else ""), abs(size)
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            return f"{sign}{size / factor:.1f} {unit}"
    return f"{sign}{size:.0f} B"


def format_count(count: float) -> str:
    for unit, factor in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= 0.9995 * factor:  # 999,999 is 1M, not 1e+03k
            return f"{count / factor:.3g}{unit}"
    return f"{count:.0f}"


def format_seconds(seconds: float) -> str:
    """`1.5 min`, `12 ms`; below 10 ms two digits, like `0.42 ms`."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 90:
        return f"{seconds / 60:.1f} min"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"


def whole_number(text: str) -> int | None:
    """Of digits as a keyboard has them, at most nine; None for anything else. `str.isdigit` knows more, `int` less."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None
