"""Traces of real services, read into requests. A row that makes no sense is refused by its line.

| format | columns |
|---|---|
| `azure` | CSV `TIMESTAMP,ContextTokens,GeneratedTokens`, times in UTC: Azure LLM inference traces (2023: Splitwise) |
| `mooncake` | JSON lines `timestamp` (ms), `input_length`, `output_length`, `hash_ids` of 512: Mooncake, FAST 2025 |
| `measured` | JSON lines `arrival_s`, `input_length`, `output_length`, `hash_ids` of 16: a measured vLLM run |
| `burst` | CSV `Timestamp` (s), `Request tokens`, `Response tokens` among others: BurstGPT, KDD 2025 |
"""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from refsim.serving.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FORMATS = ("azure", "mooncake", "measured", "burst")


class TraceError(ValueError):
    """A trace can't be used as it stands; names the file and the line."""


def load(path: str | Path, format: str = "auto", *, limit: int | None = None) -> list[Request]:
    """The requests of a trace, in order of arrival, the first at its own time after the trace's start.

    Raises FileNotFoundError, and TraceError for an unknown format or a row that is malformed, out of order or empty.
    """
    path = Path(path)
    if path.is_dir():
        raise TraceError(f"{path} is a folder; name a trace's file (a measured run's folder goes to --against)")
    if format == "auto":
        format = detect(path)
    if format not in FORMATS:
        raise TraceError(f"format {format!r} is unknown; expected one of auto, {', '.join(FORMATS)}")
    read: Callable[[Path], Iterator[tuple[int, Mapping[str, object]]]]
    read = _csv_rows if format in ("azure", "burst") else _json_rows
    parse = {"azure": _azure, "burst": _burst, "mooncake": _mooncake, "measured": _measured}[format]
    requests: list[Request] = []
    origin, before = None, -inf
    for line, row in islice(read(path), limit):
        try:
            arrival, prompt, output, more = parse(row)
            if arrival < before:
                raise ValueError("arrives before the line above it; sort the trace by time")
            before = arrival
            origin = arrival if origin is None and format == "azure" else origin or 0.0
            request = Request(len(requests), arrival - origin, prompt, output, **more)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError) as error:
            what = f"column {error} is missing" if isinstance(error, KeyError) else str(error)
            raise TraceError(f"{path.name}, line {line}: {what}") from error
        requests.append(request)
    if not requests:
        raise TraceError(f"{path.name} holds no requests")
    return requests


def detect(path: Path) -> str:
    """The format of a trace by its first line."""
    first = next(_lines(path), "").strip()
    if not first:
        raise TraceError(f"{path.name} is empty, or begins with an empty line; expected CSV or JSON lines")
    if first.startswith("{"):
        return "measured" if '"arrival_s"' in first else "mooncake"
    if first.startswith("TIMESTAMP,"):
        return "azure"
    if first.startswith("Timestamp,"):
        return "burst"
    raise TraceError(f"{path.name} starts with {first[:60]!r}, like no known format; give one of {', '.join(FORMATS)}")


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:  # spreadsheets put a byte order mark first
        try:
            yield from file
        except UnicodeDecodeError as error:
            raise TraceError(f"{path.name} is not text in UTF-8; expected CSV or JSON lines") from error


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    reader = csv.DictReader(_lines(path))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise TraceError(f"{path.name}, line {reader.line_num}: not CSV ({error})") from error


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for line, text in enumerate(_lines(path), 1):
        if text.strip():
            try:
                row = json.loads(text)
            except (json.JSONDecodeError, RecursionError) as error:
                raise TraceError(f"{path.name}, line {line}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise TraceError(f"{path.name}, line {line}: expected an object, got {text.strip()[:40]!r}")
            yield line, row


_Parsed = tuple[float, int, int, "dict[str, object]"]


def _azure(row: Mapping[str, object]) -> _Parsed:
    # Seven digits, more than datetime takes; and the later trace writes the offset, which is 0.
    second, _, fraction = str(row["TIMESTAMP"]).removesuffix("+00:00").partition(".")
    try:
        # In UTC whatever the reader's clock says: where that is put back, an hour would be counted twice.
        moment = datetime.fromisoformat(second).replace(tzinfo=UTC).timestamp() + int(fraction or 0) / 10 ** len(
            fraction
        )
    except ValueError:
        raise ValueError(f"TIMESTAMP is {row['TIMESTAMP']!r}; expected one like 2023-11-16 18:15:46.68") from None
    return moment, _count(row, "ContextTokens"), _count(row, "GeneratedTokens"), {}


def _burst(row: Mapping[str, object]) -> _Parsed:
    return _seconds(row, "Timestamp"), _count(row, "Request tokens"), _count(row, "Response tokens"), {}


def _mooncake(row: Mapping[str, object]) -> _Parsed:
    prompt = _count(row, "input_length")
    hashes = _hashes(row)
    if len(hashes) != -(-prompt // 512):
        raise ValueError(f"{len(hashes)} hash_ids for {prompt} tokens in blocks of 512")
    more = {"hash_ids": hashes, "hash_block": 512, "hashed_len": prompt}
    return _seconds(row, "timestamp") / 1000, prompt, _count(row, "output_length"), more


def _measured(row: Mapping[str, object]) -> _Parsed:
    prompt, output, hashes = _count(row, "input_length"), _count(row, "output_length"), _hashes(row)
    if len(hashes) != (prompt + output) // 16:
        raise ValueError(f"{len(hashes)} hash_ids for {prompt} + {output} tokens in whole blocks of 16")
    more = {"hash_ids": hashes, "hash_block": 16, "hashed_len": 16 * len(hashes)}
    return _seconds(row, "arrival_s"), prompt, output, more


def _count(row: Mapping[str, object], column: str) -> int:
    text = str(row[column])
    digits = text.removesuffix(".0")
    if not digits.lstrip("-").isdecimal():
        raise ValueError(f"{column} is {row[column]!r}; expected a whole number of tokens")
    return int(digits)


def _seconds(row: Mapping[str, object], column: str) -> float:
    try:
        return float(str(row[column]))
    except ValueError:
        raise ValueError(f"{column} is {row[column]!r}; expected a number") from None


def _hashes(row: Mapping[str, object]) -> tuple[int, ...]:
    hashes = row["hash_ids"]
    if not isinstance(hashes, list) or not all(isinstance(h, int) and h >= 0 for h in hashes):
        raise ValueError("hash_ids must be a list of whole numbers from 0 up")
    return tuple(hashes)
