"""The command line: parse, call, print. One file per command group, found through `GROUPS`.

A group is a module of this package with `register(app: typer.Typer) -> None`. It imports heavy things (torch,
numpy, everything of coam but `coam.errors`) inside its commands, so that `coam --help` stays quick. Its
commands raise `CoamError` for what a user can mend; the line is printed here, and the exit code is 2.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from coam import __version__
from coam.cli.printing import say
from coam.errors import CoamError, UntrainedWarning, printable

# In the order of the help page; one that is not part of this installation is left out.
GROUPS = (
    "match", "register", "demo", "doctor", "sfm", "localize", "stylize", "train", "data", "eval",
    "app", "export", "fetch",
)  # fmt: skip

BAD_INPUT, BUG, INTERRUPTED = 2, 1, 130
LONGEST_LINE = 900  # characters
# As torch and OpenCV say it
NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "insufficient memory")
TOO_LITTLE_MEMORY = "not enough memory; try a smaller --resolution, or another --device"


class OneLineErrors(TyperGroup):
    """Turns what goes wrong inside a command into one line on stderr and an exit code."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _printable_usage():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _printable_usage():
                return super().invoke(ctx)
        except CoamError as error:
            fail(str(error), BAD_INPUT, error)
        except KeyboardInterrupt as error:
            fail("stopped", INTERRUPTED, error)
        except OSError as error:
            if error.errno == errno.EPIPE:  # `coam ... | head`: typer ends quietly
                raise
            if error.errno == errno.ENOMEM:
                fail(TOO_LITTLE_MEMORY, BAD_INPUT, error)
            fail(f"{error}; check the file, its folder and the free space", BAD_INPUT, error)
        except Exception as error:  # typer's own control flow (Exit, Abort) also comes this way
            if not is_out_of_memory(error):
                raise
            fail(TOO_LITTLE_MEMORY, BAD_INPUT, error)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a library found too little memory: each says so by an error of its own kind."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in NO_MEMORY)


@contextmanager
def _printable_usage() -> Iterator[None]:
    """What the parser says about a mistake repeats what was typed."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's; its class lives in click or, later, in Typer
            vars(error)["message"] = printable(error.message)  # type: ignore[attr-defined]
        raise


def fail(message: str, code: int, cause: BaseException) -> NoReturn:
    """Print `error: message` as exactly one line and leave with `code`; COAM_DEBUG=1 shows the traceback."""
    if os.environ.get("COAM_DEBUG"):
        raise cause
    line = "error: " + message.replace("\r", "\\r").replace("\n", "\\n")
    if len(line) > LONGEST_LINE:  # it repeats what a file holds; its beginning and its advice are at the ends
        line = f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 3 :]}"
    say(line, err=True)
    raise typer.Exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"coam {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Correspondences between two photos of the same place when light, season or viewpoint have changed."""
    # Pillow warns about damaged metadata of pictures that it reads all the same.
    warnings.filterwarnings("ignore", module="PIL")
    warnings.filterwarnings("ignore", category=UntrainedWarning)  # commands refuse, or say it in a line


def build_app() -> typer.Typer:
    """The whole command line with every group that is installed."""
    app = typer.Typer(
        name="coam",
        cls=OneLineErrors,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name in GROUPS:
        if find_spec(f"{__name__}.{name}") is not None:
            import_module(f"{__name__}.{name}").register(app)
    return app


def main() -> None:
    """The entry point `coam`."""
    # Read when torch is first imported, inside a command. Threads that wait by spinning steal the cores they
    # wait for: on two cores shared with other work a match took 8.0 s, and with this 1.3 s. Some microseconds
    # of it are for small operations: to fall asleep and be woken takes as long as they do.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    try:
        build_app()()
    except KeyboardInterrupt:  # before or after a command
        sys.exit(INTERRUPTED)
    except Exception as error:
        if os.environ.get("COAM_DEBUG"):
            raise
        kind = type(error).__name__
        say(f"error: {kind}: {error} (a bug in coam; COAM_DEBUG=1 shows where)", err=True)
        sys.exit(BUG)
