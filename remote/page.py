"""Pieces of an HTML page: all text is escaped, and the page needs no script and no other file."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape

STYLE = """
body { font: 15px/1.45 Arial, sans-serif; color: #111; max-width: 52em; margin: 2em auto; padding: 0 1em }
h1 { margin-bottom: .3em } h2 { font-size: 1.2em; margin: 1.8em 0 .4em; border-bottom: 1px solid #bbb }
table { border-collapse: collapse; margin: .5em 0; font-variant-numeric: tabular-nums }
th, td { padding: .2em .8em .2em 0; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top }
.numbers td + td, .numbers th + th { text-align: right; padding-left: .8em }
.numbers thead th { vertical-align: bottom; border-bottom-color: #111 } .note { color: #444; font-size: .9em }
.wide { font-size: .76em }
.wide td + td, .wide th + th { padding-left: .3em } .wide td, .wide th { padding-right: .3em }
.wide td:first-child { min-width: 8em }
.numbers .group { text-align: center; border-bottom-color: #bbb }
.main td:nth-child(2) { font-weight: bold } .main { font-size: .85em } .main td { white-space: nowrap }
.main td + td, .main th + th { padding: .2em .3em }
.facts th { font-weight: normal; color: #444; white-space: nowrap } td { overflow-wrap: anywhere }
.good, .bad { padding: .4em .8em; border-left: 6px solid #0072B2; background: #eef5fa; overflow-wrap: anywhere }
.bad { border-color: #D55E00; background: #fcf0e8 }
figure { margin: 1em 0; break-inside: avoid } img { max-width: 100% } figcaption { color: #444; font-size: .9em }
tr { break-inside: avoid } h2 { break-after: avoid }
@page { margin: 18mm } @media print { body { margin: 0; max-width: none; font-size: 10.5pt } }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Return a whole page.

    Args:
        title: of the window; the text's own heading is among the parts.
        parts: HTML.
    """
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def heading(title: str) -> str:
    """Return the page's heading."""
    return f"<h1>{escape(title)}</h1>"


def section(title: str, *parts: str) -> str:
    """Return a heading and HTML under it."""
    return "\n".join([f"<h2>{escape(title)}</h2>", *parts])


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph, of a class of the style sheet if one is given."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def note(text: str) -> str:
    """Return a paragraph in small print."""
    return paragraph(text, "note")


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], groups: Sequence[tuple[str, int]] = (), kind: str = ""
) -> str:
    """Return a table of numbers whose rows begin with their name.

    Args:
        head: of every column.
        rows: their cells.
        groups: heads above the columns', each over so many of them.
        kind: a further class of the style sheet.
    """
    lines = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    over = "".join(f'<th class="group" colspan="{count}">{escape(name)}</th>' for name, count in groups)
    top = (f"<tr>{over}</tr>\n" if over else "") + f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>"
    return f'<table class="{f"numbers {kind}".strip()}">\n<thead>{top}</thead>\n<tbody>\n{lines}\n</tbody>\n</table>'


def facts(values: Mapping[str, str]) -> str:
    """Return a table of names and what they are."""
    rows = "\n".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in values.items())
    return f'<table class="facts">\n<tbody>\n{rows}\n</tbody>\n</table>'


def image(png: bytes, caption: str) -> str:
    """Return a figure with its picture inside."""
    data = base64.b64encode(png).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
