"""The colours of every picture, drawing and page, for light and for dark paper.

What failed has one colour, :data:`FAILED`, and nothing else has it. Planes and curves have colours that
colour-blind readers can tell apart too (tests/house/test_colours.py measures it).
"""

import re

PAPER, INK, SOFT, FAINT, LINE, SHADE = "#ffffff", "#24292f", "#57606a", "#8b949e", "#d0d7de", "#f3f5f7"
FAILED, IMPAIRED, REPAIRED, LINK = "#c8232c", "#b86e00", "#257a4d", "#0b66a8"
"""Failed or lost; slow, lossy or otherwise impaired; repaired; what can be clicked."""

_SERIES = ("#0d6abb", "#4fb592", "#822871", "#8fb300", "#4a24a5", "#e08cd8", "#74838a", "#9587ef")
_SERIES_DARK = ("#4a96ea", "#5fcca6", "#b0429a", "#cfe84a", "#5f45d8", "#f2b6f7", "#7f8c93", "#bcb0ff")
_DARKER = 0.3
"""The second eight colours are the first eight with this share of black."""


def _darker(colour: str) -> str:
    return "#" + "".join(f"{round(int(colour[i : i + 2], 16) * (1 - _DARKER)):02x}" for i in (1, 3, 5))


SERIES = (*_SERIES, *map(_darker, _SERIES))
"""The colours of curves and planes, light and dark ones in turn."""

PALETTE: dict[str, tuple[str, str]] = {
    "paper": (PAPER, "#1a2125"),
    "ink": (INK, "#e6ebed"),
    "soft": (SOFT, "#98a6ad"),
    "faint": (FAINT, "#6e7c84"),
    "line": (LINE, "#333f45"),
    "shade": (SHADE, "#12171a"),
    "failed": (FAILED, "#ff6b6b"),
    "impaired": (IMPAIRED, "#e0a03a"),
    "repaired": (REPAIRED, "#5bc78f"),
    "link": (LINK, "#5eb3ef"),
    "unknown": ("#dfe3e5", "#2c363b"),
    "good": ("#8cc5a4", "#2d6b4d"),
    "suspect": ("#e8c33a", "#d3b02f"),
    "denied": ("#7a54b8", "#9a78d6"),
    "drained": ("#4b6fd1", "#6f92f2"),
    **{
        f"series-{i}": pair
        for i, pair in enumerate(zip(SERIES, (*_SERIES_DARK, *map(_darker, _SERIES_DARK)), strict=True))
    },
}
"""Name of each colour, as CSS has it, with its light and its dark variant."""


def series(number: int) -> str:
    """The colour of a curve; after sixteen they repeat."""
    return SERIES[number % len(SERIES)]


def plane(number: int) -> str:
    """The colour of a plane of the network, the same in every picture; after sixteen they repeat."""
    return series(number)


def css() -> str:
    """The palette as custom properties of CSS (``--failed``) that follow the reader's light or dark mode."""

    def block(which: int) -> str:
        return ":root { " + " ".join(f"--{name}: {pair[which]};" for name, pair in PALETTE.items()) + " }"

    scheme = ":root { color-scheme: light dark; }"
    return f"{scheme}\n{block(0)}\n@media (prefers-color-scheme: dark) {{ {block(1)} }}\n"


_NAMES = {light: name for name, (light, _) in PALETTE.items()}
_HEX = re.compile(r"#[0-9a-f]{6}\b")
_ROOT = re.compile(r"<svg\b[^>]*>")


def adaptive(svg: str) -> str:
    """An SVG in the light palette as one that follows the reader's light or dark mode.

    Colours that are not in the palette stay as they are.
    """

    def variable(found: re.Match[str]) -> str:
        name = _NAMES.get(found[0])
        return found[0] if name is None else f"var(--{name})"

    changed = _HEX.sub(variable, svg)
    return _ROOT.sub(lambda root: f"{root[0]}<style>{css()}</style>", changed, count=1)
