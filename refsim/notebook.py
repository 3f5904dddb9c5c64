"""What notebooks need: pictures of a fixed small size, prose with computed numbers, and a player for frames.

Nothing here imports Jupyter: the objects say how they look by the methods that Jupyter asks for. The player needs
ipywidgets; without it, it is the film strip, which is also what a reader on a web page sees.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from numbers import Integral, Real
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

    Raises ValueError without rows, or when one has other columns than the first.

    >>> print(table([{"tokens": 1000, "bytes": 4096}]))
    | tokens | bytes |
    |---:|---:|
    | 1,000 | 4,096 |
    """
    if not rows:
        raise ValueError("a table needs at least one row")
    columns = list(rows[0])
    for number, row in enumerate(rows):
        if set(row) != set(columns):
            raise ValueError(f"row {number} has the columns {list(row)}, row 0 has {columns}; give each row the same")
    lines = [" | ".join(map(_cell, columns)), "|".join("---:" for _ in columns)]
    lines += [" | ".join(_cell(row[column]) for column in columns) for row in rows]
    head, rule, *body = lines
    return Prose("\n".join([f"| {head} |", f"|{rule}|", *(f"| {line} |" for line in body)]))


def _cell(value: Any) -> str:
    """A value in a table: what would end its cell or its row is written so that it doesn't."""
    return _shown(value).replace("|", "\\|").replace("\n", "<br>")


def _shown(value: Any) -> str:
    """A value in prose: whole numbers, NumPy's too, get thousands separators."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return f"{int(value):,}" if whole else str(value)


def verdict(prediction: Any, outcome: Any) -> Prose:
    """What to say once an exercise was run: the outcome, beside the prediction if there was one.

    A number in quotation marks counts as that number.

    >>> verdict(None, 2)
    'No prediction was made. The run says **2**.'
    >>> verdict(3, 2)
    'The prediction was 3. The run says **2**: find out why before reading on.'
    >>> verdict("2,080", 2080)
    'The prediction was 2,080, and the run says **2,080**.'
    """
    if prediction is None:
        return Prose(f"No prediction was made. The run says **{_shown(outcome)}**.")
    predicted = _number(prediction)
    if predicted == outcome:
        return Prose(f"The prediction was {_shown(predicted)}, and the run says **{_shown(outcome)}**.")
    return Prose(
        f"The prediction was {_shown(predicted)}. The run says **{_shown(outcome)}**: find out why before reading on."
    )


def _number(prediction: Any) -> Any:
    """A whole number for a text or a float that is one; anything else as it is."""
    if isinstance(prediction, str):
        try:
            prediction = float(prediction.replace(",", ""))
        except ValueError:
            return prediction
    written_as_real = isinstance(prediction, Real) and not isinstance(prediction, Integral)
    return int(prediction) if written_as_real and float(prediction).is_integer() else prediction


class Picture:
    """A figure as a small PNG, with words for places that show none.

    >>> axes = filmstrip([1], lambda ax, n: ax.plot([n]))
    >>> picture = Picture(axes, "one dot"); picture
    one dot
    >>> picture.png[:4]
    b'\\x89PNG'
    """

    COLOURS = 256  # the most that a palette holds; with fewer, a small patch takes a neighbour's colour

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
