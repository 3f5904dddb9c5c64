"""`refsim replay` where there is nothing to serve, little room, or an argument that can't be used."""

import pytest

from refsim.cli import main


def test_the_command_says_that_nobody_was_served(tmp_path, capsys) -> None:
    trace = tmp_path / "one.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n")
    policies = [word for name in ("paged", "uncached", "max", "pow2", "oracle") for word in ("--policy", name)]
    assert main(["replay", str(trace), "--blocks", "2", "--capacity-curve", *policies, "--out", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "0 / 1" in out
    assert "0.000 s" not in out, "a mean of nothing"
    assert "paged refused 1 request that it could never hold, of 418 tokens" in out


@pytest.mark.parametrize(("blocks", "size"), [(1, 2), (2, 1), (1, 16), (3, 3)])
def test_the_command_with_real_values_in_a_tiny_pool(blocks, size, capsys) -> None:
    arguments = ["--requests", "3", "--blocks", str(blocks), "--block-size", str(size), "--model", "random"]
    assert main(["replay", *arguments]) == 0
    assert "every output equals" in capsys.readouterr().out


def test_the_charts_go_to_a_folder(tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("")
    assert main(["replay", "--requests", "1", "--out", str(tmp_path / "file")]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--format", "csv"], "--format must be one of auto, azure, mooncake, measured, burst, got 'csv'"),
        (["--fit", "worst"], "--fit must be one of first, best, got 'worst'"),
        (["--model", "random", "--blocks", "1", "--block-size", "1"], "1 block(s) of 1 token(s) hold no prompt"),
        (["--max-len", "1"], "max_len 2 or more"),
        (["--model", "random", "--policy", "max", "--no-prefix-cache"], "has no use for --policy, --prefix-cache"),
        (["--mean-prompt", "inf"], "means finite"),
    ],
)
def test_an_argument_that_can_not_be_used_is_explained(arguments, message, capsys) -> None:
    assert main(["replay", "--requests", "5", *arguments]) == 2
    assert message in capsys.readouterr().err
