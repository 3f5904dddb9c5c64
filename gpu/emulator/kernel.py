"""The front: CuPy's way to compile and call kernels, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu.emulator.build import Module, build
from gpu.emulator.launch import Outcome, launch
from gpu.emulator.limits import STATIC_SHARED_NBYTES, dimensions, dynamic_nbytes, modes
from gpu.emulator.loaded import Entry, Loaded, load
from gpu.emulator.options import words
from gpu.emulator.report import Report
from gpu.emulator.settings import Settings
from gpu.emulator.source import made_by_macro
from gpu.emulator.trace import Trace

Size = int | Sequence[int]


class Function:
    """A kernel ready to be launched, as CuPy's ``kernel(grid, block, args, shared_mem=0)``.

    Attributes
    ----------
    trace
        What the latest launch moved; None before the first, and where the kernel was compiled untraced.
    reports
        What the latest launch's checks found in mode "report".
    checks
        The mode of each check ("raise" unless set); a name or a mapping is taken by `run`.
    max_dynamic_shared_size_bytes
        Raise it to be given more than 48 KiB of shared memory, as on a GPU.
    """

    def __init__(self, module: RawModule, name: str) -> None:
        self.module, self.name = module, name
        self.max_dynamic_shared_size_bytes = STATIC_SHARED_NBYTES
        self.checks: dict[str, str] = modes(module.checks)
        self.outcome: Outcome | None = None

    def __call__(
        self, grid: Size, block: Size, args: Sequence[Any], *, shared_mem: int = 0, stream: object = None
    ) -> None:
        """Launch, and return when the kernel has ended.

        Raises
        ------
        KernelError
            A check failed; no array has changed.
        LaunchError, TypeError
            The launch or its arguments don't fit the kernel or any device.
        """
        del stream  # launches are over when they return
        self.launch(grid, block, args, shared_mem=shared_mem)

    def launch(self, grid: Size, block: Size, args: Sequence[Any], *, shared_mem: int = 0, **settings: Any) -> Outcome:
        """Launch with settings (those of `run`); the outcome is kept and returned."""
        self.outcome = None
        shape = dimensions("grid", grid), dimensions("block", block)
        limit = max(STATIC_SHARED_NBYTES, self.max_dynamic_shared_size_bytes)
        chosen = Settings(**{"checks": self.checks, "shared_limit": limit, **settings})
        self.outcome = launch(self._loaded, self.entry, *shape, args, dynamic_nbytes(shared_mem), chosen)
        return self.outcome

    @property
    def _loaded(self) -> Loaded:
        return self.module.loaded(self.name)

    @property
    def entry(self) -> Entry:
        """The kernel's signature."""
        return self._loaded.entries[self.name]

    @property
    def trace(self) -> Trace | None:
        return self.outcome.trace if self.outcome else None

    @property
    def reports(self) -> list[Report]:
        return self.outcome.reports if self.outcome else []

    @property
    def attributes(self) -> dict[str, int]:
        """A few of the figures that CuPy gives under the same names."""
        return {
            "max_threads_per_block": self.entry.bounds or 1024,
            "shared_size_bytes": self._loaded.shared_of(self.entry),
            "max_dynamic_shared_size_bytes": self.max_dynamic_shared_size_bytes,
        }

    @property
    def max_threads_per_block(self) -> int:
        return self.attributes["max_threads_per_block"]

    @property
    def shared_size_bytes(self) -> int:
        return self.attributes["shared_size_bytes"]


class RawModule:
    """CUDA C++ text with any number of kernels: CuPy's ``RawModule`` without the GPU.

    Parameters
    ----------
    code
        The text.
    options
        As for NVRTC: ``-D``, ``-I`` and ``-std`` matter.
    name_expressions
        Instances of templates that `get_function` will be asked for.
    traced
        False compiles at plain speed: no counts, and only the checks that need no eye on memory.
    checks
        Mode of each check for all kernels: "raise" (default), "report", "ignore", or a mapping from check to mode.
    compiler
        A C++ compiler's command, or "zig"; else the one that is found.

    >>> import numpy as np
    >>> module = RawModule(code='''
    ... template <typename T> __global__ void fill(T* out, T value) { out[threadIdx.x] = value; }
    ... ''', name_expressions=["fill<int>"])
    >>> out = np.zeros(4, np.int32)
    >>> module.get_function("fill<int>")(1, 4, (out, np.int32(7)))
    >>> out
    array([7, 7, 7, 7], dtype=int32)
    """

    def __init__(
        self,
        code: str,
        *,
        options: Sequence[str] = (),
        backend: str = "nvrtc",
        name_expressions: Sequence[str] | None = None,
        traced: bool = True,
        checks: Mapping[str, str] | str | None = None,
        compiler: str | None = None,
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        jitify: bool = False,
    ) -> None:
        del translate_cucomplex, enable_cooperative_groups, jitify  # CuPy's, of no meaning here
        if not isinstance(code, str):
            raise TypeError(f"code must be the text of the module, not {type(code).__name__}")
        self.code, self.options, self.backend = code, words("options", options), backend
        self.name_expressions = words("name_expressions", name_expressions or ())
        self.traced, self.compiler = traced, compiler
        self.checks = modes(checks)
        self._built: Module | None = None
        self._functions: dict[str, Function] = {}

    def compile(self, log_stream: object = None) -> None:
        """Compile now and not at first use."""
        del log_stream
        self._built = build(
            self.code,
            self.options,
            name_expressions=self.name_expressions,
            traced=self.traced,
            compiler=self.compiler,
        )

    def loaded(self, name: str) -> Loaded:
        if self._built is None:
            self.compile()
        assert self._built is not None
        loaded = load(self._built)
        if name not in loaded.entries:
            text = self._built.kernels.get(name)
            why = (
                f"`{name}` is a template: name an instance in name_expressions"
                if text and text.template
                else f"the text's #if compiles `{name}` out"
                if name in self._built.names
                else f'`{name}` has a C++ name: write extern "C" before it, or use name_expressions'
                if text
                else f"the module has {', '.join(loaded.entries)}"
            )
            raise ValueError(f"no kernel {name!r}: {why}")
        return loaded

    def get_function(self, name: str) -> Function:
        """A kernel by name, or by one of the name_expressions."""
        if name not in self._functions:
            self.loaded(name)
            self._functions[name] = Function(self, name)
        return self._functions[name]

    def get_global(self, name: str) -> np.ndarray:
        """The bytes of a ``__device__`` or ``__constant__`` variable: write to them before a launch.

        Kernels see it, and what they write to ``__device__`` variables stays; a module that has such runs on one core.
        """
        if self._built is None:
            self.compile()
        assert self._built is not None
        return load(self._built).variable(name)


class RawKernel(Function):
    """One kernel from its text: CuPy's ``RawKernel`` without the GPU. Parameters as for `RawModule`.

    >>> import numpy as np
    >>> add = RawKernel(r'''
    ... extern "C" __global__ void add(const float* x, float* y, int n) {
    ...     int i = blockIdx.x * blockDim.x + threadIdx.x;
    ...     if (i < n) y[i] += x[i];
    ... }''', "add")
    >>> x, y = np.ones(100, np.float32), np.zeros(100, np.float32)
    >>> add((4,), (32,), (x, y, np.int32(100)))
    >>> float(y.sum()), add.trace.nbytes("x", "read"), add.trace.tensors["y"].write.sectors
    (100.0, 400, 13)
    """

    def __init__(self, code: str, name: str, options: Sequence[str] = (), backend: str = "nvrtc", **rest: Any) -> None:
        if isinstance(code, str) and made_by_macro(code, name):
            rest["name_expressions"] = [name]
        super().__init__(RawModule(code, options=options, backend=backend, **rest), name)

    def compile(self, log_stream: object = None) -> None:
        """Compile now and not at first use."""
        self.module.compile(log_stream)
