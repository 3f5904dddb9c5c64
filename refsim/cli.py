"""The command line: one table of commands, each in a module of its own that is imported when it is asked for."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer


@dataclass(frozen=True)
class Command:
    """A sub-command: the function `name` of a module."""

    name: str
    module: str
    summary: str

    @property
    def exists(self) -> bool:
        """Whether the module can be found. A wheel has no gpu/."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False

    def function(self) -> Callable[..., Any]:
        """The command itself, imported now."""
        return getattr(importlib.import_module(self.module), self.name)


COMMANDS = (
    Command("tour", "refsim.cli_tour", "A real model writes text through a paged KV cache."),
    Command("step", "refsim.cli_step", "Walk an algorithm, one step a key press."),
    Command("traffic", "refsim.cli_traffic", "What a shape moves and computes, by tensor."),
    Command("devices", "refsim.cli_devices", "The cost model's devices, with their sources."),
    Command("replay", "refsim.cli_replay", "Replay a trace of requests against cache managers."),
    Command("crosscheck", "gpu.cli", "Hold CUDA kernels against their NumPy twins."),
    Command("check", "refsim.cli_check", "Judge a kernel of your own by the reference."),
    Command("validate", "refsim.cli_validate", "Published figures beside what refsim computes."),
    Command("sweep", "refsim.cli_sweep", "Run many shapes, algorithms and devices."),
)
NO_GPU = (
    "{name} runs the kernels of the project's gpu/ folder, which can't be imported here: a wheel leaves it out. "
    "Clone the project and install it from there: pip install -e ."
)


def build(chosen: str | None = None) -> typer.Typer:
    """The application. Only the `chosen` command is imported; the others stand there by name for the list in --help."""
    app = typer.Typer(
        name="refsim",
        epilog="refsim COMMAND --help shows an example of each. Begin with: refsim tour",
        rich_markup_mode=None,
        add_completion=False,
    )
    app.callback()(_options)
    for command in COMMANDS:
        if command.name == chosen and command.exists:
            app.command(command.name)(command.function())
        elif command.exists or command.module.startswith("gpu."):
            # Whatever arguments were given, the answer is why there is no such command here.
            anything = {"allow_extra_args": True, "ignore_unknown_options": True}
            app.command(command.name, help=command.summary, context_settings=anything)(_unavailable(command))
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2, with one line on stderr, for arguments that can't be used."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # a question mark is better than an end half-way
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    chosen = next((word for word in given if not word.startswith("-")), None)
    try:
        return build(chosen)(given, prog_name="refsim", standalone_mode=False) or 0
    except typer.Abort:
        return 130
    except Exception as error:
        message = _what_was_wrong(error, chosen)
        if message is None:
            raise
        print(f"refsim: {' '.join(message.split())}", file=sys.stderr)
        return 2


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"refsim {importlib.metadata.version('refsim')}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    """Attention and paged KV caches in NumPy, on a machine that watches every byte."""


def _unavailable(command: Command) -> Callable[[], None]:
    def say_so() -> None:
        raise ImportError(NO_GPU.format(name=command.name))

    return say_so


def _what_was_wrong(error: Exception, chosen: str | None) -> str | None:
    """The message of an error that the arguments caused; None for a fault of ours, which deserves its traceback."""
    if hasattr(error, "format_message"):  # the parser's own errors: unknown options, values of the wrong type
        command = f" {chosen}" if any(chosen == command.name and command.exists for command in COMMANDS) else ""
        return f"{error.format_message().rstrip('.')}; see: refsim{command} --help"
    # The library refuses wrong input with these, and says what to do; SramOverflow is a MemoryError.
    if isinstance(error, ValueError | MemoryError | OSError | ImportError | NotImplementedError):
        return str(error)
    return None
