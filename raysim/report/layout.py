"""Lines, bars and numbers of the printed report: how things look, nothing of what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.text import Text

WIDE, NARROW = 100, 80
LABEL = 12
NAME = 33
BAR = 34
JOINT = " · "
"""Between things of one list."""
TIMES = "\N{MULTIPLICATION SIGN}"
SPECIAL = f"█▏·─±{TIMES}"
"""What an output must be able to encode, or `ascii_only` is for it."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_ASCII = str.maketrans(
    {"█": "#", "·": "-", TIMES: "x", "─": "-", "±": "~"}
    | dict.fromkeys("▉▊▋▌", "#")
    | dict.fromkeys("▍▎▏", "|")
)


def ascii_only(pretty: Text) -> Text:
    """The same text in ASCII, for an output that cannot encode block characters."""
    plain = pretty.copy()
    plain.plain = pretty.plain.translate(_ASCII)
    return plain


def bar(share: float, width: int) -> str:
    """A bar of ``share`` (0 to 1) of ``width`` columns, in eighths; above zero it is visible."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def percent(share: float, digits: int = 1) -> str:
    """``97.4 %``; a share that would round to zero says so."""
    least = 0.5 * 10.0**-digits
    if 0 < abs(share) * 100 < least:
        return f"<{10.0**-digits:.{digits}f} %"
    return f"{share * 100:,.{digits}f} %"


def usd(amount: float) -> str:
    """Dollars: cents below 100, whole dollars above, three digits below one."""
    if abs(amount) >= 100:
        return f"${amount:,.0f}"
    return f"${amount:,.2f}" if abs(amount) >= 1 else f"${amount:.3g}"


def number(value: float) -> str:
    """Three significant digits at least, whole numbers above 100."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or value == 0 else f"{value:.2e}"


def pretty(words: str) -> str:
    """``2 x 8`` with a multiplication sign."""
    return words.replace(" x ", f" {TIMES} ")


@dataclass(slots=True)
class Page:
    """Lines of one width, grown section by section."""

    width: int
    lines: list[Text] = field(default_factory=list)

    def add(self, *parts: str | tuple[str, str]) -> None:
        """Start a line of plain and ``(text, style)`` parts."""
        self.lines.append(Text.assemble(*parts))

    def blank(self) -> None:
        """An empty line."""
        self.lines.append(Text())

    def rule(self) -> None:
        """A line under a table's heading."""
        self.add((" " + "─" * min(self.width - 17, 83), "dim"))

    def flow(self, items: Iterable[Text], *, indent: int, joint: str = " ") -> None:
        """Append ``items`` to the last line, wrapped with a hanging indent."""
        line = self.lines[-1]
        first = True
        for item in items:
            glue = "" if first else joint
            if line.cell_len + len(glue) + item.cell_len > self.width and not first:
                line.append(joint.rstrip(), "dim")
                line = Text(" " * indent)
                self.lines.append(line)
                glue = ""
            line.append(glue, "dim" if glue.strip() else item.style)
            line.append_text(item)
            first = False

    def words(self, words: str, *, indent: int, style: str = "") -> None:
        """Append running text to the last line, wrapped at blanks."""
        self.flow((Text(w, style) for w in words.split()), indent=indent)

    def labelled(
        self, label: str, items: Sequence[Text], *, style: str = "bold", joint: str = " · "
    ) -> None:
        """``label`` in its column, then items; an item too long for a line wraps at blanks."""
        self.add((f"{label:<{LABEL}}", style))
        if all(i.cell_len <= self.width - LABEL for i in items):
            self.flow(items, indent=LABEL, joint=joint)
            return
        for n, item in enumerate(items):
            if n:
                self.add(" " * LABEL)
            pieces = item.split(" ")
            self.flow(pieces, indent=LABEL)
