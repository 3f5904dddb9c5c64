"""The chapters as one HTML page that needs nothing else: pictures are inside it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from refsim.tour.page import Chapter, Picture, Prose, Quote, Table

# Pictures are drawn on white, in the dark too. On a narrow screen they scroll, as tables do: shrunk, nobody reads them.
STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #222; --quiet: #595959; --line: #ddd; --quote: #f6f6f6;
  --link: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --page: #1b1b1b; --text: #ddd; --quiet: #a8a8a8; --line: #444; --quote: #272727; --link: #6cb8e6; }
}
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--text); background: var(--page); overflow-wrap: break-word; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
nav a { display: inline-block; margin-right: 1rem; } a { color: var(--link); }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem 1rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { border-bottom-color: var(--quiet); } td { min-width: 6rem; }
.r { text-align: right; white-space: nowrap; min-width: 0; }
blockquote { margin: 1rem 0; padding: .5rem 1rem; border-left: 3px solid var(--link); background: var(--quote);
  white-space: pre-wrap; overflow-wrap: anywhere; }
blockquote span, figcaption { color: var(--quiet); }
figure { margin: 1.5rem 0; } figcaption { font-size: .9rem; }
figure img { display: block; max-width: 100%; min-width: 34rem; background: #fff; }
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
            image = f"<img src='data:image/png;base64,{data}' alt='{text}'>"
            return f"<figure><div class='scroll'>{image}</div><figcaption>{text}</figcaption></figure>"


def _cell(tag: str, text: str, side: str) -> str:
    return f"<{tag}{' class=r' if side == 'r' else ''}>{escape(text)}</{tag}>"
