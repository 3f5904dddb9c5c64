"""Text to token ids and back: whole bytes, llama2.c's scored merges, glassllm's ranked merges."""

from __future__ import annotations

import json
import re
import struct
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol


class Tokenizer(Protocol):
    """What a decoder needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, beginning-of-text token included where the model expects one."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; control tokens have none."""


class ByteTokenizer:
    """One token a UTF-8 byte: what a model without a vocabulary of its own uses.

    >>> ByteTokenizer().encode("né")
    [110, 195, 169]
    """

    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


class ScoredBPE:
    """llama2.c's tokenizer (SentencePiece's BPE): of all neighbours that form a token, merge the best-scored first.

    Ids 0, 1, 2 are unknown, begin and end; ids 3 to 258 the 256 bytes, for characters that are no token.
    """

    BEGIN, END, FIRST_BYTE = 1, 2, 3
    # Raw bytes are spelled like this in the vocabulary.
    _BYTE = re.compile(rb"<0x([0-9A-F]{2})>")

    def __init__(self, pieces: Sequence[bytes], scores: Sequence[float]) -> None:
        self.pieces, self.scores = list(pieces), list(scores)
        self._ids = {piece: i for i, piece in reversed(list(enumerate(pieces)))}

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    @classmethod
    def load(cls, path: str | Path, vocab_size: int) -> ScoredBPE:
        """Read a `tokenizer.bin`: int32 longest piece; then, for each token, float32 score, int32 length, bytes.

        Raises ValueError when the file ends early or goes on after `vocab_size` tokens.
        """
        data, at = Path(path).read_bytes(), 4
        pieces, scores = [], []
        for token in range(vocab_size):
            if at + 8 <= len(data):
                score, length = struct.unpack_from("<fi", data, at)
            if at + 8 > len(data) or length < 0 or at + 8 + length > len(data):
                raise ValueError(f"{path}: cut short at token {token} of {vocab_size}; another model's tokenizer?")
            pieces.append(data[at + 8 : at + 8 + length])
            scores.append(score)
            at += 8 + length
        if at != len(data):
            raise ValueError(f"{path}: more than the model's {vocab_size} tokens; another model's tokenizer?")
        return cls(pieces, scores)

    def encode(self, text: str) -> list[int]:
        ids = [self.BEGIN]
        # A space goes first, so that the first word is spelled like any other.
        for character in " " + text if text else "":
            piece = character.encode("utf-8")
            ids += [self._ids[piece]] if piece in self._ids else [byte + self.FIRST_BYTE for byte in piece]
        while True:
            merges = [(i, self._ids.get(self.pieces[a] + self.pieces[b])) for i, (a, b) in enumerate(pairwise(ids))]
            possible = [(i, new) for i, new in merges if new is not None]
            if not possible:
                return ids
            i, new = max(possible, key=lambda merge: self.scores[merge[1]])  # of equals, the leftmost
            ids[i : i + 2] = [new]

    def decode(self, ids: Sequence[int]) -> str:
        text, before = b"", None
        for token in ids:
            piece = self.pieces[token]
            if byte := self._BYTE.fullmatch(piece):
                piece = bytes([int(byte[1], 16)])
            if before == self.BEGIN:
                piece = piece.removeprefix(b" ")
            before = token
            text += b"" if token in (self.BEGIN, self.END) else piece
        return text.decode("utf-8", errors="replace")


class RankedBPE:
    """glassllm's tokenizer: characters in chunks that keep words apart; the earliest-learned merge goes first."""

    SPACE = "▁"
    SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
    # A newline, or spaces with the word after them, or a word that starts a line.
    _CHUNK = re.compile(r"\n|▁+[^▁\n]*|[^▁\n]+")

    def __init__(self, alphabet: Iterable[str], merges: Iterable[Sequence[str]]) -> None:
        pairs = [(left, right) for left, right in merges]
        self.rank = {pair: rank for rank, pair in enumerate(pairs)}
        self.pieces = [*self.SPECIALS, *alphabet, *(left + right for left, right in pairs)]
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    @classmethod
    def load(cls, path: str | Path) -> RankedBPE:
        """Read a `*.tokenizer.json` with keys alphabet and merges."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(data["alphabet"], data["merges"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a tokenizer with an alphabet and pairs of merges ({error!r})") from error

    def _merged(self, chunk: str) -> list[str]:
        parts = list(chunk)
        while True:
            first = min(pairwise(parts), key=lambda pair: self.rank.get(pair, len(self.rank)), default=None)
            if first is None or first not in self.rank:
                return parts
            merged: list[str] = []
            for part in parts:
                # The pair is taken from the left; a part already merged is no longer the pair's first half.
                if merged and (merged[-1], part) == first:
                    merged[-1] += part
                else:
                    merged.append(part)
            parts = merged

    def encode(self, text: str) -> list[int]:
        marked = unicodedata.normalize("NFC", text).replace(" ", self.SPACE)
        unknown = self._ids["<unk>"]
        return [self._ids.get(part, unknown) for chunk in self._CHUNK.findall(marked) for part in self._merged(chunk)]

    def decode(self, ids: Sequence[int]) -> str:
        silent = dict.fromkeys(self.SPECIALS, "") | {"<unk>": "⁇"}
        return "".join(silent.get(self.pieces[i], self.pieces[i]) for i in ids).replace(self.SPACE, " ")
