"""Results as a notebook shows them: tables and pictures in HTML, and a line where there is only text."""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import Any

from openmrc.extras import import_optional


def table(rows: Iterable[Sequence[str]], columns: Sequence[str] = ()) -> str:
    """A table; the first column has the names, the others are aligned to the right."""
    head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in columns)
    lines = [f"<tr>{head}</tr>"] if columns else []
    for name, *cells in rows:
        line = f"<td style='text-align:left'><b>{html.escape(name)}</b></td>"
        line += "".join(f"<td style='text-align:right'>{html.escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr>{line}</tr>")
    return f"<table>{''.join(lines)}</table>"


def picture(figure: Any, name: str) -> str:
    """A matplotlib figure as part of the page."""
    data = base64.b64encode(png(figure)).decode()
    return f'<img alt="{html.escape(name)}" style="max-width:100%" src="data:image/png;base64,{data}">'


def png(figure: Any) -> bytes:
    """A matplotlib figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def preformatted(text: str) -> str:
    """Text with its line breaks and columns."""
    return f"<pre>{html.escape(text)}</pre>"


class Gallery(dict[str, Any]):
    """Figures by name, which a notebook shows below each other."""

    def __repr__(self) -> str:
        return f"<{len(self)} pictures: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        return "".join(f"<div>{picture(figure, name)}</div>" for name, figure in self.items())


class Frames(dict[str, Any]):
    """Arrow tables by name."""

    def to_pandas(self) -> dict[str, Any]:
        """Every table as a ``pandas.DataFrame``.

        Raises:
            Error: if pandas is not installed.
        """
        import_optional("pandas", "to_pandas", "pandas")
        return {name: table.to_pandas() for name, table in self.items()}

    def __repr__(self) -> str:
        return f"<frames: {', '.join(f'{name} ({frame.num_rows:,} rows)' for name, frame in self.items())}>"

    def _repr_html_(self) -> str:
        rows = [(name, f"{frame.num_rows:,}", ", ".join(frame.column_names)) for name, frame in self.items()]
        return table(rows, ("frame", "rows", "columns"))
