"""Arguments of a launch, checked against the kernel's own signature."""

from __future__ import annotations

import ctypes
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu.emulator.loaded import Entry
from gpu.emulator.native import Parameter

WORDS = {"f": "float", "i": "int", "u": "unsigned", "b": "bool", "s": "struct"}
# Kinds of NumPy's types that pointers take; unsigned integers and ml_dtypes' (V) may be the bits of anything.
TAKEN = {"f": "fV", "i": "iuV", "u": "iufV"}


@dataclass(frozen=True)
class Arguments:
    """What a launch passes: arrays by parameter position, and the bytes of everything else."""

    arrays: dict[int, np.ndarray]
    values: dict[int, bytes]


def _type_name(parameter: Parameter) -> str:
    kind = WORDS[parameter.kind.decode()]
    if parameter.pointer:
        kind = WORDS[parameter.kind.decode()] if parameter.pointee_nbytes > 1 or parameter.kind != b"s" else "void"
        return f"a pointer to {kind} of {parameter.pointee_nbytes} bytes"
    return f"{'an' if kind[0] in 'iu' else 'a'} {kind} of {parameter.nbytes} bytes"


def _scalar(parameter: Parameter, value: Any, where: str) -> bytes:
    kind = parameter.kind.decode()
    wrong = f"{where} is {_type_name(parameter)}, but was given {reprlib.repr(value)} ({type(value).__name__})"
    if isinstance(value, np.void) or kind == "s":
        if not isinstance(value, (np.generic, complex)) or np.asarray(value).dtype.hasobject:
            raise TypeError(f"{wrong}. Pass a NumPy scalar of {parameter.nbytes} bytes")
        raw = np.asarray(value).tobytes()
        if len(raw) != parameter.nbytes:
            raise TypeError(f"{wrong}: {len(raw)} bytes. Pass a NumPy scalar of {parameter.nbytes} bytes")
        return raw
    if isinstance(value, (bool, np.bool_)):
        value = int(value) if kind in "iu" else bool(value)
    if kind == "f":
        if isinstance(value, float) and not isinstance(value, np.generic) and parameter.nbytes == 8:
            return np.float64(value).tobytes()
        if isinstance(value, np.floating) and value.dtype.itemsize == parameter.nbytes:
            return value.tobytes()
        raise TypeError(f"{wrong}. A GPU would read its raw bytes: pass np.float{8 * parameter.nbytes}(...)")
    if kind == "b" and isinstance(value, bool):
        return np.bool_(value).tobytes()
    if isinstance(value, (int, np.integer)):
        dtype = np.dtype(f"{'i' if kind == 'i' else 'u'}{parameter.nbytes}")
        info = np.iinfo(dtype)
        if not info.min <= int(value) <= info.max:
            raise TypeError(f"{wrong}, which does not fit ({info.min} to {info.max})")
        return np.array(int(value)).astype(dtype).tobytes()
    raise TypeError(f"{wrong}. Pass an integer")


def _array(parameter: Parameter, array: np.ndarray, where: str) -> None:
    wrong = f"{where} is {_type_name(parameter)}, but was given an array of"
    if not parameter.pointer:
        raise TypeError(f"{wrong} shape {array.shape}")
    dtype, size, kind = array.dtype, parameter.pointee_nbytes, parameter.kind.decode()
    if dtype.hasobject:
        raise TypeError(f"{wrong} Python objects ({dtype}): pass an array of numbers")
    if not dtype.isnative:
        raise TypeError(f"{wrong} {dtype.str}, whose bytes a kernel would read in the wrong order: pass a native copy")
    if kind == "s" or (size == 1 and kind != "b"):
        return  # a struct, a type of the kernel's own, or bytes
    if dtype.itemsize not in (1, size):
        raise TypeError(
            f"{wrong} {dtype} ({dtype.itemsize} bytes an element): pass an array of elements of {size} bytes"
        )
    taken = dtype.kind in TAKEN[kind] if dtype.itemsize > 1 else size == 1 or dtype.kind != "b"
    if not taken:
        expected = {"f": f"float{8 * size}", "i": f"int{8 * size}", "u": f"uint{8 * size}"}[kind]
        raise TypeError(
            f"{wrong} {dtype}. A GPU would read its raw bytes: pass an array of {expected}, or a .view as that type "
            "where raw bytes are meant"
        )


def check_arguments(entry: Entry, given: Sequence[Any]) -> Arguments:
    """Take apart the arguments of a launch.

    Raises
    ------
    TypeError
        Too many or too few, or one that doesn't fit its parameter. A GPU's launcher checks neither.
    """
    if not isinstance(given, (tuple, list)):
        raise TypeError(
            f"the arguments of kernel `{entry.name}` ({', '.join(entry.names)}) must be a tuple, got "
            f"{type(given).__name__}; of one argument it is (x,)"
        )
    count = len(entry.parameters)
    if len(given) != count:
        raise TypeError(
            f"kernel `{entry.name}` takes {count} arguments ({', '.join(entry.names)}), but was given {len(given)}"
        )
    arrays, values = {}, {}
    for i, (parameter, name, value) in enumerate(zip(entry.parameters, entry.names, given, strict=True)):
        where = f"argument {i} (`{name}`) of kernel `{entry.name}`"
        if isinstance(value, np.ndarray) and not (value.ndim == 0 and not parameter.pointer):
            _array(parameter, value, where)
            arrays[i] = value
        elif parameter.pointer:
            if value is not None and not (isinstance(value, (int, np.integer)) and int(value) == 0):
                raise TypeError(
                    f"{where} is {_type_name(parameter)}, but was given {reprlib.repr(value)} "
                    f"({type(value).__name__}): pass a NumPy array, or None"
                )
            values[i] = bytes(8)
        else:
            values[i] = _scalar(parameter, value[()] if isinstance(value, np.ndarray) else value, where)
    return Arguments(arrays, values)


def pack(arguments: Arguments, pointers: dict[int, int]) -> tuple[list[int], Any]:
    """One address an argument, and the memory that they point into."""
    pieces = {**arguments.values, **{i: p.to_bytes(8, "little") for i, p in pointers.items()}}
    padded = [pieces[i] + bytes(-len(pieces[i]) % 16) for i in sorted(pieces)]
    buffer = ctypes.create_string_buffer(b"".join(padded) + bytes(16), sum(map(len, padded)) + 32)
    start = (ctypes.addressof(buffer) + 15) & ~15
    ctypes.memmove(start, b"".join(padded), sum(map(len, padded)))
    addresses, at = [], start
    for piece in padded:
        addresses.append(at)
        at += len(piece)
    return addresses, buffer
