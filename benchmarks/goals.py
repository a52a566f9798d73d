"""The word beside a goal, which all.py looks for."""


def verdict(*, met: bool) -> str:
    return "met" if met else "missed"
