"""The command line: what it prints is counted right, and what it can't use is refused in one line."""

import io
import re
import sys
from collections.abc import Callable, Iterator

import pytest
import typer

from refsim import cli
from refsim.cli_inputs import make_inputs
from refsim.cli_shape import Shape

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line; exit code, stdout, stderr. The terminal is wide, so that no line is broken."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def cells(output: str, row: str) -> list[float]:
    """The numbers of a row of a printed table."""
    line = next(line for line in output.splitlines() if line.strip().startswith(f"{row} "))
    return [float(number.replace(",", "")) for number in line.removeprefix(row).split()]


class TestFrame:
    def test_without_arguments_it_lists_the_commands_that_exist(self, run: Run) -> None:
        code, out, _ = run()
        assert code == 0
        for command in cli.COMMANDS:
            listed = re.search(rf"^  {command.name} ", out, re.MULTILINE) is not None
            assert listed == (command.exists or command.name == "crosscheck"), command.name

    @pytest.mark.parametrize("command", [c for c in cli.COMMANDS if c.exists and c.module.startswith("refsim")])
    def test_every_help_shows_an_example(self, run: Run, command: cli.Command) -> None:
        code, out, _ = run(command.name, "--help")
        assert code == 0
        assert "Example" in out
        assert f"refsim {command.name} " in out

    def test_version(self, run: Run) -> None:
        code, out, _ = run("--version")
        assert (code, bool(re.fullmatch(r"refsim \d+\.\d+\.\d+\n", out))) == (0, True)

    def test_a_terminal_without_a_letter_gets_a_question_mark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
        assert cli.main(["step", "flash", "--queries", "1", "--keys", "2", "--all"]) == 0
        assert b" ? matmul FLOPs" in written.getvalue()

    @pytest.mark.parametrize(
        ("arguments", "where"),
        [
            (("nope",), "refsim --help"),
            (("--nope",), "refsim --help"),
            (("step",), "refsim step --help"),
            (("tour", "--tokens", "x"), "refsim tour --help"),
        ],
    )
    def test_what_the_parser_refuses_says_where_to_look(
        self, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], where: str
    ) -> None:
        assert cli.main(arguments) == 2
        assert capsys.readouterr().err.endswith(f"; see: {where}\n")

    def test_only_the_chosen_command_is_imported(self, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
        imported = []
        function = cli.Command.function
        monkeypatch.setattr(cli.Command, "function", lambda self: imported.append(self.name) or function(self))
        assert run("traffic", "--help")[0] == 0
        assert imported == ["traffic"]

    def test_without_the_gpu_folder_crosscheck_says_where_to_get_it(
        self, monkeypatch: pytest.MonkeyPatch, run: Run
    ) -> None:
        monkeypatch.setattr(cli.Command, "exists", property(lambda self: self.module.startswith("refsim.cli_step")))
        code, _, err = run("crosscheck", "paged", "--runtime", "emulator")
        assert code == 2
        assert "gpu/ folder" in err
        assert "pip install -e ." in err
        assert "crosscheck" in run()[1]

    def test_a_fault_of_ours_keeps_its_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken() -> None:
            raise KeyError("ours")

        monkeypatch.setattr(cli.Command, "function", lambda self: broken)
        with pytest.raises(KeyError, match="ours"):
            cli.main(["step"])


BAD = [
    ("nothing",),
    ("step",),
    ("step", "nothing"),
    ("step", "flash", "--keys", "many"),
    ("step", "flash", "--keys", "-1"),
    ("step", "flash", "--tile", "0x4"),
    ("step", "flash", "--tile", "4"),
    ("step", "flash", "--heads", "3", "--kv-heads", "2"),
    ("step", "flash", "--heads", "0"),
    ("step", "paged", "--block-size", "0"),
    ("step", "split_kv", "--splits", "0"),
    ("step", "flash", "--window", "0"),
    ("step", "flash", "--seed", "-1"),
    ("step", "flash", "--unknown"),
    ("traffic", "--lengths", "ten"),
    ("traffic", "--lengths", ""),
    ("traffic", "--dtype", "int8"),
    ("traffic", "--algorithm", "nothing"),
    ("traffic", "--tile", "4096x4096"),
    ("traffic", "--head-dim", "0"),
    ("traffic", "--lengths", str(10**20)),
    ("traffic", "--lengths", "100", "--queries", str(2**31)),
    ("traffic", "--device", "Abacus"),
    ("tour", "--block-size", "0"),
    ("tour", "--weights", "no/such/weights.bin"),
]


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_arguments_get_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("refsim: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


class TestTraffic:
    def test_a_paged_decode_step_by_hand(self, run: Run) -> None:
        _, out, _ = run(
            "traffic", "--algorithm", "paged", "--lengths", "1000,24", "--head-dim", "32", "--dtype", "float16"
        )
        # Two KV heads of 32 float16 numbers, each of 1024 keys read once; 63 + 2 blocks of 16, for each KV head.
        assert cells(out, "k_cache") == cells(out, "v_cache") == [1024 * 2 * 32 * 2]
        assert cells(out, "block_tables") == [(63 + 2) * 2 * 4]
        assert cells(out, "q") == cells(out, "out") == [2 * 8 * 32 * 2]
        assert cells(out, "matmul FLOPs") == [4 * 1024 * 8 * 32]
        assert cells(out, "in all") == [sum(cells(out, row)[0] for row in ("read", "written"))]

    def test_a_window_of_100_reads_100_keys(self, run: Run) -> None:
        _, out, _ = run("traffic", "--algorithm", "paged", "--lengths", "1000", "--causal", "--window", "100")
        assert cells(out, "k_cache") == [100 * 2 * 64 * 2]

    def test_all_algorithms_side_by_side(self, run: Run) -> None:
        _, out, _ = run("traffic", "--lengths", "100", "--prefill", "--causal", "--heads", "4", "--dtype", "float32")
        head = next(line for line in out.splitlines() if line.startswith("HBM bytes"))
        assert head.split() == ["HBM", "bytes", "standard", "flash", "paged_gather", "paged", "split_kv"]
        # Standard attention writes S of 4 heads and reads it back; nobody else has one.
        assert cells(out, "s") == [2 * 4 * 100 * 100 * 4, 0, 0, 0, 0]
        assert cells(out, "kernel launches") == [3, 1, 2, 1, 2]

    @pytest.mark.parametrize("width", ["40", "60", "80"])
    def test_a_narrow_terminal_cuts_no_number(self, run: Run, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
        arguments = ("traffic", "--lengths", "2000000000", "--device", "H100")
        numbers = re.compile(r"[\d,.]*\d")
        wide = run(*arguments)[1]
        monkeypatch.setenv("COLUMNS", width)
        narrow = run(*arguments)[1]
        assert max(map(len, wide.splitlines())) > 80
        assert sorted(set(numbers.findall(wide))) == sorted(set(numbers.findall(narrow)))
        assert "\N{HORIZONTAL ELLIPSIS}" not in narrow

    def test_tables_have_one_order(self, run: Run) -> None:
        arguments = ("traffic", "--lengths", "64")
        assert run(*arguments) == run(*arguments)


class TestStep:
    @pytest.mark.parametrize("option", ["--queries", "--keys", "--head-dim"])
    def test_what_nobody_could_watch_is_refused_at_once(self, run: Run, option: str) -> None:
        code, _, err = run("step", "paged", option, "1000000")
        assert code == 2
        assert "too many numbers to watch" in err

    def test_all_steps_without_keys(self, run: Run) -> None:
        code, out, _ = run("step", "flash", "--all", "--queries", "2", "--keys", "10", "--tile", "2x4")
        assert code == 0
        assert re.findall(r"step \d+: (\w+)", out) == ["absorb"] * 3 + ["write"]
        error = re.search(r"float64 oracle: (\S+)", out)
        assert error is not None
        assert float(error[1]) < 1e-6

    @pytest.mark.parametrize("algorithm", ["standard", "flash", "paged_gather", "paged", "split-kv"])
    def test_every_algorithm_ends_at_the_oracle(self, run: Run, algorithm: str) -> None:
        _, out, _ = run("step", algorithm, "--all", "--causal", "--window", "3", "--keys", "7", "--queries", "5")
        assert float(out.rsplit("oracle:", 1)[1]) < 1e-6

    def test_shows_the_lines_that_did_it(self, run: Run) -> None:
        _, out, _ = run("step", "flash", "--all", "--queries", "1", "--keys", "1")
        assert "chip.absorb(state, s, v)" in out
        assert re.search(r"fold\.py:\d+", out)

    def test_state_before_is_the_state_after_of_the_step_before(self, run: Run) -> None:
        _, out, _ = run("step", "flash", "--all", "--queries", "1", "--keys", "8", "--tile", "1x4", "--heads", "1")
        sums = [re.findall(r"\[(.*?)\]", line) for line in out.splitlines() if line.startswith("l ")]
        assert [len(shown) for shown in sums] == [1, 2]
        assert sums[1][0] == sums[0][0] != sums[1][1]

    def test_the_seed_sets_the_numbers(self, run: Run) -> None:
        first, again, other = (run("step", "flash", "--all", "--seed", seed)[1] for seed in ("1", "1", "2"))
        assert first == again != other

    @pytest.mark.parametrize(("keys", "shown"), [("  q", 3), ("\x1b", 1), (" a", 5), ("x" * 5, 5)])
    def test_keys(self, run: Run, monkeypatch: pytest.MonkeyPatch, keys: str, shown: int) -> None:
        pressed: Iterator[str] = iter(keys)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr(typer, "getchar", lambda: next(pressed))
        _, out, _ = run("step", "flash", "--queries", "1", "--keys", "16", "--tile", "1x4")
        assert len(re.findall(r"step \d+:", out)) == shown
        assert next(pressed, None) is None
        assert ("oracle" in out) == (shown == 5)


def test_inputs_lie_in_shuffled_blocks_with_nothing_readable_beside_them() -> None:
    inputs = make_inputs(Shape(((1, 5), (1, 3)), heads=1, kv_heads=1, head_dim=2, block_size=2), seed=0)
    flat = inputs.block_tables[inputs.block_tables >= 0]
    assert sorted(flat.tolist()) == list(range(5))
    assert flat.tolist() != sorted(flat.tolist())
    held = inputs.k_cache[inputs.block_tables[0]].reshape(-1, 1, 2)
    assert (held[:5] == inputs.k[:5]).all()
    assert (held[5:] != held[5:]).all()  # NaN
