"""Film strips and the player: the numbers in the frames, not the pixels."""

import io
import sys

import numpy as np
import pytest

from refsim import attention, notebook
from refsim.charts.filmstrip import draw_softmax_frame, filmstrip, softmax_frames
from refsim.charts.lookup import block_lookup
from refsim.charts.pool_film import PoolFilm
from refsim.kvcache import BlockManager

T, D = 11, 4
rng = np.random.default_rng(3)
Q, K, V = (rng.standard_normal(shape) for shape in ((2, 4, D), (T, 2, D), (T, 2, 3)))


def scores(row, head):
    return K[:, head // 2] @ Q[row, head] / 2


def test_some_of_these_rows_fade_and_some_do_not():
    first = {(r, h): scores(r, h)[:4].max() == scores(r, h).max() for r in range(2) for h in range(4)}
    assert 0 < sum(first.values()) < 8


def walk(algorithm, **options):
    return softmax_frames(algorithm.steps(Q, K, V, tile=(2, 4), **options), row=1, program=(1, 0))


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("head", range(4))
def test_frames_of_flash_hold_the_weights_of_the_keys_seen_so_far(row, head):
    frames = softmax_frames(attention.flash.steps(Q, K, V, tile=(2, 4)), row=row, program=divmod(head, 2))
    s = scores(row, head)
    assert [frame.name for frame in frames] == ["absorb"] * 3 + ["write"]
    for frame, stop in zip(frames, (4, 8, 11), strict=False):
        seen = s[:stop]
        np.testing.assert_allclose(frame.weights[:stop], np.exp(seen - seen.max()))
        assert np.isnan(frame.weights[stop:]).all()
        assert frame.new.stop == stop
        assert (frame.m, frame.l) == (pytest.approx(seen.max()), pytest.approx(np.exp(seen - seen.max()).sum()))
        p = np.exp(seen) / np.exp(seen).sum()
        np.testing.assert_allclose(frame.out, p @ V[:stop, head // 2])
    np.testing.assert_allclose(frames[-1].weights, np.exp(s) / np.exp(s).sum())
    assert frames[-1].lse == pytest.approx(np.log(np.exp(s).sum()))
    assert sum(frame.hbm_nbytes for frame in frames) > 0


@pytest.mark.parametrize("handover", ["lse", "state"])
@pytest.mark.parametrize("num_splits", [1, 3, 20])
def test_frames_of_split_kv_begin_anew_in_each_split_and_end_in_the_softmax(handover, num_splits):
    frames = softmax_frames(
        attention.split_kv.steps(Q[:1], K, V, num_splits=num_splits, handover=handover), program=(1, 0), row=1
    )
    s = scores(0, 3)
    for frame in frames:
        if frame.name == "absorb":
            new = s[frame.new.start : frame.new.stop]
            np.testing.assert_allclose(frame.weights[frame.new.start : frame.new.stop], np.exp(new - new.max()))
            assert np.isnan(frame.weights[frame.new.stop :]).all()
    assert [frame.split for frame in frames if frame.name == "hand over"] == list(range(num_splits))
    last = frames[-1]
    assert (last.name, last.split) == ("reduce", None)
    p = np.exp(s) / np.exp(s).sum()
    np.testing.assert_allclose(last.weights, p)
    np.testing.assert_allclose(last.out, p @ V[:, 1])


def test_empty_splits_hand_over_no_weight():
    frames = softmax_frames(attention.split_kv.steps(Q[:1], K[:1], V[:1], num_splits=3))
    empty = [frame for frame in frames if frame.name == "hand over" and frame.split > 0]
    assert len(empty) == 2
    for frame in empty:
        assert np.isnan(frame.weights).all()
        assert frame.lse == -np.inf
        assert not frame.out.any()


def test_a_row_that_sees_nothing_yet_keeps_weight_zero():
    frames = softmax_frames(attention.flash.steps(Q, K, V, causal=True, align="top-left", tile=(2, 4)), row=0)
    assert [frame.weights.tolist() for frame in frames] == [[1, 0], [1, 0]]


def test_standard_attention_has_no_such_frames():
    with pytest.raises(ValueError, match="none of these steps absorbs keys"):
        softmax_frames(attention.standard.steps(Q, K, V))


def test_a_strip_has_an_axes_a_frame_with_a_bar_a_seen_key():
    frames = walk(attention.flash)
    axes = filmstrip(frames, draw_softmax_frame, columns=3)
    assert len(axes) == 4
    assert len({ax.figure for ax in axes}) == 1
    assert [len(ax.patches) for ax in axes] == [4, 8, 11, 11]
    np.testing.assert_allclose([bar.get_height() for bar in axes[1].patches], frames[1].weights[:8])
    colours = [bar.get_facecolor() for bar in axes[1].patches]
    assert len(set(colours[:4])) == len(set(colours[4:])) == 1
    assert colours[0] == axes[2].patches[7].get_facecolor() != colours[4] == axes[2].patches[8].get_facecolor()
    assert axes[1].get_title() == f"keys 4–7\nm {frames[1].m:.2f}   l {frames[1].l:.2f}"
    assert axes[3].get_title() == f"write\nLSE {frames[3].lse:.2f}"


def test_a_frame_of_one_key_counts_keys():
    (absorbed, written) = softmax_frames(attention.flash.steps(Q, K[:1], V[:1], tile=(2, 4)))
    assert absorbed.title.startswith("key 0\n")
    (ax, _) = filmstrip([absorbed, written], draw_softmax_frame)
    assert ax.get_xticks().tolist() == [0]


@pytest.mark.parametrize(
    ("where", "wanted"), [({"row": 2}, "row must be from 0 to 1"), ({"program": (5, 0)}, "program")]
)
def test_a_row_or_a_program_that_is_not_there(where, wanted):
    with pytest.raises(ValueError, match=wanted):
        softmax_frames(attention.flash.steps(Q, K, V, tile=(2, 4)), **where)


@pytest.mark.parametrize("where", [{"sequence": 3}, {"query_tile": 9}])
def test_a_tile_that_is_not_there(where):
    with pytest.raises(ValueError, match=r"no step absorbs keys for query tile \d of sequence \d"):
        softmax_frames(attention.flash.steps(Q, K, V, tile=(2, 4)), **where)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="at least one frame"):
        filmstrip([], lambda ax, frame: None)
    with pytest.raises(ValueError, match="1 titles for 2 frames"):
        filmstrip([1, 2], lambda ax, frame: None, titles=["a"])
    with pytest.raises(ValueError, match="columns must be a whole number from 1, got 0"):
        filmstrip([1], lambda ax, frame: None, columns=0)


def test_pictures_are_small_png_files_with_words():
    from PIL import Image

    picture = notebook.Picture(filmstrip(walk(attention.flash), draw_softmax_frame), "four frames")
    image = Image.open(io.BytesIO(picture._repr_png_()))
    assert (image.format, image.mode) == ("PNG", "P")
    assert len(picture.png) < 40_000
    assert repr(picture) == "four frames"


def test_a_picture_keeps_the_colours_of_its_figure():
    # A tensor of few bytes is a sliver of the bar and a patch in the legend; its colour must stay its own.
    from PIL import Image

    from refsim import charts
    from refsim.charts.style import tensor_colour
    from refsim.machine import Key, Ledger

    sizes = {"q": 1, "k_cache": 900, "v_cache": 900, "k": 900, "v": 900, "s": 5, "p": 3, "o_partial": 2, "out": 1}
    ledger = Ledger({Key("flash", tensor, "HBM", "read"): 1000 * size for tensor, size in sizes.items()})
    picture = notebook.Picture(charts.traffic_by_algorithm({"one": ledger, "two": ledger}), "two bars")
    shown = {colour for _, colour in Image.open(io.BytesIO(picture.png)).convert("RGB").getcolors(1 << 20)}
    wanted = {tensor: tuple(bytes.fromhex(tensor_colour(tensor)[1:])) for tensor in sizes}
    assert {tensor for tensor, colour in wanted.items() if colour not in shown} == set()


def test_prose_is_markdown():
    assert notebook.Prose(f"**{1 + 1}**")._repr_markdown_() == "**2**"


def test_tables_and_verdicts_say_what_they_are_given():
    rows = [{"tokens": 1000, "share": "1/3"}, {"tokens": 7, "share": "0"}]
    assert notebook.table(rows).splitlines() == ["| tokens | share |", "|---:|---:|", "| 1,000 | 1/3 |", "| 7 | 0 |"]
    with pytest.raises(ValueError, match="at least one row"):
        notebook.table([])
    with pytest.raises(ValueError, match=r"row 1 has the columns \['b'\], row 0 has \['a'\]"):
        notebook.table([{"a": 1}, {"b": 2}])
    with pytest.raises(ValueError, match="row 1 has the columns"):
        notebook.table([{"a": 1, "b": 2}, {"a": 3}])
    assert notebook.table([{"a": 1, "b": 2}, {"b": 4, "a": 3}]).splitlines()[-1] == "| 3 | 4 |"
    odd = {"true": True, "NumPy's": np.int64(5000), "a bar": "|x|", "lines": "1\n2", "real": np.float64(2)}
    assert notebook.table([odd]).splitlines()[-1] == "| True | 5,000 | \\|x\\| | 1<br>2 | 2.0 |"
    assert notebook.verdict(None, 2080) == "No prediction was made. The run says **2,080**."
    assert notebook.verdict(2080, 2080) == "The prediction was 2,080, and the run says **2,080**."
    assert notebook.verdict(3, 2).startswith("The prediction was 3. The run says **2**")


@pytest.mark.parametrize("prediction", [2, "2", 2.0, np.int64(2), np.float32(2)])
def test_a_right_prediction_is_right_however_it_is_written(prediction):
    assert notebook.verdict(prediction, 2) == "The prediction was 2, and the run says **2**."


@pytest.mark.parametrize("prediction", ["two", (2, 80), 2.5, np.inf, "nan", 10**40])
def test_any_other_prediction_is_repeated_not_an_error(prediction):
    said = notebook.verdict(prediction, 2)
    assert said.startswith("The prediction was ")
    assert said.endswith(". The run says **2**: find out why before reading on.")


def test_a_lookup_draws_the_table_and_the_path_of_one_position():
    ax = block_lookup([3, 9, 7], 37, block_size=16, num_blocks=10)
    assert ax.get_title() == "position 37 is slot 5 of logical block 2, which lies in P7"
    assert len(ax.lines) == 3
    ends = [(round(line.get_xdata()[1] - 0.43), line.get_linewidth()) for line in ax.lines]
    assert ends == [(3, 1), (9, 1), (7, 2)]
    with pytest.raises(ValueError, match="logical block 3; the table has 3 entries"):
        block_lookup([3, 9, 7], 48, block_size=16, num_blocks=10)


def test_a_pool_film_keeps_what_was_and_a_colour_a_sequence():
    manager = BlockManager(4, 2)
    film = PoolFilm(manager, columns=2)
    manager.allocate("a", 3)
    film.keep("a")
    manager.fork("a", "b")
    manager.append("b", 1)
    film.keep("b writes")
    manager.free("a")
    film.keep("a ends")
    assert [[block.holders for block in frame.blocks] for frame in film.frames] == [
        [("a",), ("a",), (), ()],
        [("a", "b"), ("a",), ("b",), ()],
        [("b",), (), ("b",), ()],
    ]
    axes = filmstrip(film.frames, film.draw)
    stripes = [[patch for patch in ax.patches if patch.get_fill()] for ax in axes]
    colours = [[patch.get_facecolor() for patch in frame] for frame in stripes]
    assert [len(frame) for frame in colours] == [2, 4, 2]
    assert colours[0][0] == colours[1][0] != colours[1][1]
    assert colours[2][0] == colours[1][1], "b keeps its colour when a is gone"
    assert [patch.get_height() for patch in stripes[0]] == [pytest.approx(0.92), pytest.approx(0.46)]
    assert "P0 · 2 refs" in [text.get_text() for text in axes[1].texts]


def test_a_title_keeps_its_lines():
    film = PoolFilm(BlockManager(1, 1))
    film.keep("one\nand two")
    assert filmstrip(film.frames, film.draw)[0].get_title() == "one\nand two"


def test_long_names_and_titles_stay_in_their_frames():
    manager = BlockManager(2, 2)
    film = PoolFilm(manager, columns=2)
    manager.allocate("a request with a long name", 3)
    film.keep("a request with a long name arrives and takes two blocks")
    (ax,) = filmstrip(film.frames, film.draw)
    assert ax.get_title() == "a request with a long name\narrives and takes two blocks"
    names = [text for text in ax.texts if text.get_text().startswith("a request")]
    assert len(names) == 2
    ax.figure.draw_without_rendering()
    squares = [patch.get_window_extent() for patch in ax.patches if not patch.get_fill()]
    for text, square in zip(names, squares, strict=True):
        assert text.get_clip_on()
        assert (text.get_clip_box().x0, text.get_clip_box().x1) == pytest.approx((square.x0, square.x1))


def test_the_player_holds_every_frame_and_its_controls_are_linked(monkeypatch):
    widgets = pytest.importorskip("ipywidgets")
    links = []
    monkeypatch.setattr(widgets, "jslink", lambda *ends: links.append(ends))
    box = notebook.player(walk(attention.flash), draw_softmax_frame)
    controls, stack = box.children
    play, slider = controls.children
    assert isinstance(stack, widgets.Stack)
    assert len(stack.children) == 4
    assert len({image.value for image in stack.children}) == 4
    assert (play.min, play.max, slider.max, stack.selected_index) == (0, 3, 3, 0)
    assert links == [((play, "value"), (slider, "value")), ((slider, "value"), (stack, "selected_index"))]


def test_the_player_without_ipywidgets_is_the_strip(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    shown = notebook.player(walk(attention.flash), draw_softmax_frame, alt="four frames")
    assert isinstance(shown, notebook.Picture)
    assert shown.alt == "four frames"


def test_importing_it_imports_no_heavy_thing():
    import subprocess

    heavy = "matplotlib", "ipywidgets", "IPython", "PIL"
    code = f"import sys, refsim.notebook; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
