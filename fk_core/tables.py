"""Tables whose first column can always be copied: ids are neither cut nor broken, however narrow the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fk_core.plain import clean_text


class Rows:
    """Rows under headings; the first cell of a row names it. To be printed with ``crop=False``.

    Where there is too little room the ``wide`` columns are wrapped between words; where that is not enough, each row
    becomes a line of its own name and one of the other cells with their headings.
    """

    def __init__(self, *headings: str, wide: Sequence[str] = (), title: str = "") -> None:
        self.headings, self.title = headings, title
        self.rows: list[list[Text]] = []
        self._wraps = [heading in wide for heading in headings]

    def add(self, *cells: str | Text) -> None:
        self.rows.append([cell if isinstance(cell, Text) else Text(clean_text(cell)) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        least = [self._width(column, words=wraps) for column, wraps in enumerate(self._wraps)]
        borders = 3 * len(self.headings) + 1
        spare = options.max_width - borders - sum(least)
        if spare < 0:
            yield from self._paragraphs()
            return
        wanted = [self._width(column, words=False) - width for column, width in enumerate(least)]
        for column in sorted(range(len(least)), key=wanted.__getitem__):
            given = min(wanted[column], spare)
            least[column] += given
            spare -= given
        table = Table(title=self.title or None)
        for heading, width in zip(self.headings, least, strict=True):
            table.add_column(heading, width=width, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        yield table

    def _width(self, column: int, *, words: bool) -> int:
        """Of the longest line of a column, or of its longest word."""
        texts = [self.headings[column], *(row[column].plain for row in self.rows)]
        parts = [part for text in texts for part in (text.split() if words else text.splitlines())]
        return max(map(cell_len, parts), default=1)

    def _paragraphs(self) -> list[RenderableType]:
        shown: list[RenderableType] = [Text(self.title, style="italic")] if self.title else []
        for name, *cells in self.rows:
            shown.append(Text(name.plain, style=name.style, no_wrap=True, overflow="ignore"))
            told = [
                Text.assemble(f"{heading}: ", cell) if heading else cell
                for heading, cell in zip(self.headings[1:], cells, strict=True)
                if cell.plain
            ]
            if told:
                shown.append(Padding(Text("; ").join(told), (0, 0, 0, 4)))
        return shown
