"""What notebooks need: pictures of a fixed small size, prose with computed numbers, and a player for frames.

Nothing here imports Jupyter: the objects say how they look by the methods that Jupyter asks for. The player needs
ipywidgets; without it, it is the film strip, which is also what a reader on a web page sees.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from refsim.charts.filmstrip import filmstrip

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")


class Prose(str):
    """Markdown. Numbers in it are put there by an f-string, so that they can't go stale."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return str(self)


def table(rows: Sequence[dict[str, Any]]) -> Prose:
    """Rows of one set of columns as a Markdown table; whole numbers get thousands separators.

    >>> print(table([{"tokens": 1000, "bytes": 4096}]))
    | tokens | bytes |
    |---:|---:|
    | 1,000 | 4,096 |
    """
    if not rows:
        raise ValueError("a table needs at least one row")
    lines = [" | ".join(rows[0]), "|".join("---:" for _ in rows[0])]
    lines += [" | ".join(f"{x:,}" if isinstance(x, int) else str(x) for x in row.values()) for row in rows]
    head, rule, *body = lines
    return Prose("\n".join([f"| {head} |", f"|{rule}|", *(f"| {line} |" for line in body)]))


def verdict(prediction: Any, outcome: Any) -> Prose:
    """What to say once an exercise was run: the outcome, beside the prediction if there was one.

    >>> verdict(None, 2)
    'No prediction was made. The run says **2**.'
    >>> verdict(3, 2)
    'The prediction was 3. The run says **2**: find out why before reading on.'
    """
    if prediction is None:
        return Prose(f"No prediction was made. The run says **{outcome:,}**.")
    if prediction == outcome:
        return Prose(f"The prediction was {prediction:,}, and the run says **{outcome:,}**.")
    return Prose(f"The prediction was {prediction:,}. The run says **{outcome:,}**: find out why before reading on.")


class Picture:
    """A figure as a small PNG, with words for those who can't see it.

    >>> axes = filmstrip([1], lambda ax, n: ax.plot([n]))
    >>> picture = Picture(axes, "one dot"); picture
    one dot
    >>> picture.png[:4]
    b'\\x89PNG'
    """

    COLOURS = 64

    def __init__(self, axes: Axes | Sequence[Axes], alt: str, *, dpi: int = 110) -> None:
        ax = axes[0] if isinstance(axes, Sequence) else axes
        self.alt = alt
        self.png = _png(ax.figure, dpi, self.COLOURS)

    def __repr__(self) -> str:
        return self.alt

    def _repr_png_(self) -> bytes:
        return self.png


def player(
    frames: Sequence[T],
    draw: Callable[[Axes, T], Any],
    *,
    size: tuple[float, float] = (5.0, 3.0),
    interval_ms: int = 900,
    alt: str = "frames of a walk",
) -> Any:
    """Play, pause and step through frames; `draw(ax, frame)` draws one. Without ipywidgets: the film strip.

    All frames are drawn beforehand and the widgets are linked in the browser, so that stepping asks Python nothing.

    Raises ValueError without frames.
    """
    try:
        import ipywidgets as widgets
    except ImportError:
        return Picture(filmstrip(frames, draw), alt)
    pictures = [Picture(filmstrip([frame], draw, size=size), alt).png for frame in frames]
    if not pictures:
        raise ValueError("a player needs at least one frame")
    last = len(pictures) - 1
    stack = widgets.Stack([widgets.Image(value=png, format="png") for png in pictures], selected_index=0)
    play = widgets.Play(min=0, max=last, value=0, interval=interval_ms)
    slider = widgets.IntSlider(min=0, max=last, value=0, description="step")
    widgets.jslink((play, "value"), (slider, "value"))
    widgets.jslink((slider, "value"), (stack, "selected_index"))
    return widgets.VBox([widgets.HBox([play, slider]), stack])


def _png(figure: Any, dpi: int, colours: int) -> bytes:
    """A PNG with a palette, a third of the size of one without."""
    from PIL import Image

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=dpi)
    Image.open(full).convert("RGB").quantize(colours).save(small, format="png", optimize=True)
    return small.getvalue()
