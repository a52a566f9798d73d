"""Colours of an HTML page by purpose, for light and dark mode.

A test checks their contrast: 4.5 to 1 for text on its background, 3 to 1 for lines and bars (WCAG 2.2, 1.4.3 and
1.4.11, https://www.w3.org/TR/WCAG22/).
"""

LIGHT = {
    "page": "#ffffff",
    "panel": "#f3f6f9",
    "ink": "#17222d",
    "quiet": "#53606c",
    "rule": "#d5dce3",
    "one": "#1c5f9c",
    "two": "#a84a06",
    "three": "#1f7048",
    "four": "#7a3f98",
    "five": "#8a6100",
    "six": "#4a5560",
    "line": "#b3261e",
    "faint": "#b9cfe4",
}
DARK = {
    "page": "#10161d",
    "panel": "#18212b",
    "ink": "#e7edf3",
    "quiet": "#9fadba",
    "rule": "#2f3b47",
    "one": "#74b3ee",
    "two": "#f0a467",
    "three": "#6fcf9b",
    "four": "#cf9ee8",
    "five": "#dfc05a",
    "six": "#b4bfca",
    "line": "#ff8a80",
    "faint": "#2d4a66",
}
SERIES = ("one", "two", "three", "four", "five", "six")
"""Names of the colours of a chart's curves or bar parts, in order."""
