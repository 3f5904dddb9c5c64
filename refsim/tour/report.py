"""The chapters as one HTML page that needs nothing else: pictures are inside it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from refsim.tour.page import Chapter, Picture, Prose, Quote, Table

STYLE = """
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; color: #222; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
nav a { margin-right: 1rem; } a { color: #0072b2; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
th { border-bottom: 1px solid #999; } td { border-bottom: 1px solid #eee; } .r { text-align: right; }
blockquote { margin: 1rem 0; padding: .5rem 1rem; border-left: 3px solid #0072b2; background: #f6f6f6;
  white-space: pre-wrap; overflow-wrap: anywhere; }
blockquote span { color: #777; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; } figcaption { color: #555; font-size: .9rem; }
"""


def write_report(folder: Path, title: str, chapters: Sequence[Chapter]) -> Path:
    """Write each picture as a PNG and the whole as `report.html` into a folder, which is made; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for chapter in chapters:
        for item in chapter.items:
            if isinstance(item, Picture):
                (folder / f"{item.name}.png").write_bytes(item.png)
    page = folder / "report.html"
    page.write_text(html(title, chapters), encoding="utf-8")
    return page


def html(title: str, chapters: Sequence[Chapter]) -> str:
    """The page.

    >>> "<h2 id='c1'>One</h2>" in html("Tour", [Chapter("One", (Prose("a < b"),))])
    True
    """
    links = "".join(f"<a href='#c{i}'>{escape(chapter.title)}</a> " for i, chapter in enumerate(chapters, start=1))
    body = "\n".join(_chapter(i, chapter) for i, chapter in enumerate(chapters, start=1))
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n<nav>{links}</nav>\n{body}\n</body></html>\n"
    )


def _chapter(number: int, chapter: Chapter) -> str:
    items = "\n".join(_item(item) for item in chapter.items)
    return f"<h2 id='c{number}'>{escape(chapter.title)}</h2>\n{items}"


def _item(item: Prose | Quote | Table | Picture) -> str:
    match item:
        case Prose(text):
            return f"<p>{escape(text)}</p>"
        case Quote(given, added):
            return f"<blockquote><span>{escape(given)}</span>{escape(added)}</blockquote>"
        case Table(columns, rows, align):
            head = "".join(_cell("th", text, side) for text, side in zip(columns, align, strict=True))
            body = "".join(
                f"<tr>{''.join(_cell('td', text, side) for text, side in zip(row, align, strict=True))}</tr>"
                for row in rows
            )
            return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        case Picture(_, png, caption):
            data = base64.b64encode(png).decode("ascii")
            text = escape(caption, quote=True)
            return (
                f"<figure><img src='data:image/png;base64,{data}' alt='{text}'><figcaption>{text}</figcaption></figure>"
            )


def _cell(tag: str, text: str, side: str) -> str:
    return f"<{tag}{' class=r' if side == 'r' else ''}>{escape(text)}</{tag}>"
