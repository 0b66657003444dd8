"""Functions that build HTML: plain strings are escaped, `Html` is not; wide tables scroll inside a box."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

VOID = ("br", "img", "input", "link", "meta")


class Html(str):
    """Markup, as opposed to text that must be escaped."""


def tag(name: str, /, *inside: Any, **attributes: Any) -> Html:
    """An element with its children and attributes.

    `_` in attribute names becomes `-`, a trailing `_` is dropped; None and False leave an attribute out.

    >>> tag("p", "a < b ", tag("b", "c"), class_="note", data_n=1)
    '<p class="note" data-n="1">a &lt; b <b>c</b></p>'
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{written}>" + ("" if name in VOID else f"{join(inside)}</{name}>"))


def join(parts: Iterable[Any]) -> Html:
    """The parts one after the other, text escaped; None is skipped."""
    return Html("".join(p if isinstance(p, Html) else html.escape(str(p)) for p in parts if p is not None))


def table(caption: str, head: Sequence[Any], rows: Sequence[Sequence[Any]], **attributes: Any) -> Html:
    """A table in a box that scrolls sideways.

    The first cell of a row is its heading. A row that is `Html` already is used as it is, and so is a cell that is a
    `<td>`. The caption is for screen readers; `attributes` are the table's.
    """
    top = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head)))
    body = (
        row
        if isinstance(row, Html)
        else tag("tr", tag("th", row[0], scope="row"), *(c if _is_cell(c) else tag("td", c) for c in row[1:]))
        for row in rows
    )
    inner = tag("table", tag("caption", caption, class_="unseen"), top, tag("tbody", *body), **attributes)
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _is_cell(value: Any) -> bool:
    return isinstance(value, Html) and value.startswith("<td")


def fold(title: Any, *inside: Any) -> Html:
    """A section that is collapsed until its title is clicked."""
    return tag("details", tag("summary", title), *inside)


def data_uri(data: bytes, kind: str = "image/webp") -> str:
    """A file as an address, to embed it in the page; `kind` is its media type."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def percent(share: float) -> str:
    """A share in percent, with one decimal.

    >>> percent(0.9649)
    '96.5'
    """
    return f"{100 * share:.1f}"


def asset(name: str) -> Html:
    """The text of a style sheet or script in this folder."""
    return Html((files(__package__) / name).read_text("utf-8"))


def document(title: str, *body: Any, scripts: Sequence[str] = ()) -> str:
    """A whole page with its style sheet and scripts (file names in this folder) embedded."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", title),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),  # otherwise browsers request one
        tag("style", asset("page.css")),
    )
    inner = tag("body", *body, *(tag("script", asset(name)) for name in scripts))
    return f"<!doctype html>{tag('html', head, inner, lang='en')}"
