"""Tokenizers on vocabularies small enough to follow by hand."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.model.tokenizer import ByteTokenizer, RankedBPE, ScoredBPE

BYTES = [b"<0x%02X>" % i for i in range(256)]
WORDS = [
    (b" ", -1.0),
    (b"a", -2.0),
    (b"b", -3.0),
    (b"ab", -5.0),
    (b"ba", -4.0),
    (b" a", -6.0),
    (b"aba", -7.0),
    (b"bb", -8.0),
]
SCORED = ScoredBPE(
    [b"<unk>", b"\n<s>\n", b"\n</s>\n", *BYTES, *(piece for piece, _ in WORDS)],
    [0.0] * 259 + [score for _, score in WORDS],
)
ID = {piece.decode(): 259 + i for i, (piece, _) in enumerate(WORDS)}
RANKED = RankedBPE(["a", "b", "\n", "▁"], [("a", "b"), ("b", "a"), ("▁", "ab"), ("ab", "ab")])


@given(st.text())
def test_bytes_come_back_as_the_same_text(text):
    assert ByteTokenizer().decode(ByteTokenizer().encode(text)) == text


def test_scored_merges_take_the_best_first_wherever_it_stands():
    # " ", a, b, a: "ba" (-4) beats "ab" (-5) and " a" (-6); then " a" is the only pair left with a token.
    assert SCORED.encode("aba") == [1, ID[" a"], ID["ba"]]
    # Of equal scores the leftmost goes first.
    assert SCORED.encode("bbb") == [1, ID[" "], ID["bb"], ID["b"]]


def test_scored_fallback_spells_unknown_characters_in_bytes():
    assert SCORED.encode("é") == [1, ID[" "], 0xC3 + 3, 0xA9 + 3]
    assert SCORED.decode(SCORED.encode("é")) == "é"


def test_scored_beginning_carries_no_text_and_swallows_one_space():
    assert SCORED.encode("") == [1]
    assert SCORED.decode([1, ID[" a"], ID[" a"], 2]) == "a a"
    assert SCORED.decode([ID[" a"]]) == " a"
    assert SCORED.decode([1, ID[" "], ID[" "]]) == " "


@given(st.text())
def test_scored_text_comes_back_whole(text):
    assert SCORED.decode(SCORED.encode(text)) == text


def test_ranked_merges_take_the_earliest_learned_first():
    pieces = lambda text: [RANKED.pieces[i] for i in RANKED.encode(text)]  # noqa: E731
    assert pieces("abab") == ["abab"]
    assert pieces("bab") == ["b", "ab"]
    assert pieces("aba ab") == ["ab", "a", "▁ab"]  # the space belongs to the word after it
    assert pieces("ab\nab") == ["ab", "\n", "ab"]
    assert pieces("axb") == ["a", "<unk>", "b"]
    assert pieces("e\u0301") == ["<unk>"]  # one character once composed


def test_ranked_special_tokens_have_no_text_but_the_unknown_has_a_mark():
    assert RANKED.decode([2, *RANKED.encode("ab ab"), 3, 0]) == "ab ab"
    assert RANKED.decode(RANKED.encode("x")) == "⁇"


@given(st.text(alphabet="ab \n"))
def test_ranked_text_comes_back_whole(text):
    assert RANKED.decode(RANKED.encode(text)) == text


def scored_file(pieces=SCORED.pieces, scores=SCORED.scores) -> bytes:
    body = b"".join(struct.pack("<fi", s, len(p)) + p for p, s in zip(pieces, scores, strict=True))
    return struct.pack("<i", max(map(len, pieces))) + body


def test_scored_files_are_read_whole_or_refused(tmp_path):
    path = tmp_path / "tok.bin"
    path.write_bytes(scored_file())
    assert ScoredBPE.load(path, 267).encode("aba") == SCORED.encode("aba")
    for damage, vocab, says in [
        (scored_file()[:-1], 267, "cut short at token 266 of 267"),
        (scored_file()[:-12], 267, "cut short at token 265 of 267"),  # 10 bytes are the last token
        (b"", 267, "cut short at token 0"),
        (scored_file(), 300, "cut short at token 267 of 300"),
        (scored_file(), 100, "more than the model's 100 tokens"),
        (struct.pack("<ifi", 7, 0.0, -5), 1, "cut short at token 0"),
    ]:
        path.write_bytes(damage)
        with pytest.raises(ValueError, match=says):
            ScoredBPE.load(path, vocab)


@pytest.mark.parametrize("content", ["{", "[]", '{"alphabet": ["a"]}', '{"alphabet": ["a"], "merges": [["a"]]}'])
def test_ranked_files_that_are_none_are_refused(tmp_path, content):
    path = tmp_path / "x.tokenizer.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"x\.tokenizer\.json"):
        RankedBPE.load(path)


def test_ranked_files_are_read(tmp_path):
    path = tmp_path / "x.tokenizer.json"
    path.write_text(json.dumps({"version": 1, "alphabet": ["a", "b"], "merges": [["a", "b"]]}), encoding="utf-8")
    assert RankedBPE.load(path).pieces == ["<pad>", "<unk>", "<bos>", "<eos>", "a", "b", "ab"]
