"""Attacks run in child processes with limits of time and memory; what becomes of each is one word.

An attack does something with hostile input in an empty folder. Allowed are an error of ours in one line
("refused"), and an answer that is right ("same") or that nobody can judge ("read"). Everything else is a
defect: "traceback", "hang", "memory", "crash" (the process died), "silent" (other values than were
written), "left" (something stays behind), "not a line" (an error of several lines, or one that no
terminal would show whole).
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from coam.errors import CoamError

DEFECTS = ("traceback", "hang", "memory", "crash", "silent", "left", "not a line")
SECONDS = 20.0  # of processor time for one attack: what is refused is refused within some of them
PATIENCE = 60.0  # seconds of the clock in which a process that waits for something does nothing at all
MEGABYTES = 1500  # that one attack may add
LONGEST_LINE = 1000  # characters
ADDRESS_SPACE = 16 << 30  # bytes: before a bomb takes the machine


@dataclass(frozen=True)
class Attack:
    """`run(folder)` returns "same", "read" or "silent", or raises; CoamErrors are what it should raise."""

    family: str
    name: str
    run: Callable[[Path], str]


@dataclass(frozen=True)
class Outcome:
    """What became of an attack."""

    attack: Attack
    word: str
    detail: str = ""

    @property
    def is_defect(self) -> bool:
        return self.word in DEFECTS

    def __str__(self) -> str:
        return f"{self.attack.family}/{self.attack.name}: {self.word} {self.detail}"


class Refused(Exception):
    """The command line refused: what it printed."""


def command_line(*arguments: object) -> str:
    """Run `coam` with these arguments in this process: "read", or `Refused` with its one line."""
    from coam.cli import main

    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["coam", *map(str, arguments)]
    code: object = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    if code == 0:
        return "read"
    lines = err.getvalue().strip().splitlines()
    if code == 2 and "Traceback" not in err.getvalue():
        # Warnings may stand above; usage errors are framed by the parser.
        if lines and (lines[-1].startswith("error: ") or "Error" in err.getvalue()):
            raise Refused(lines[-1])
        raise RuntimeError(f"not one line: {err.getvalue()[-500:]!r}")
    raise RuntimeError(f"exit code {code}: {err.getvalue()[-800:]}")


def run_attacks(attacks: Iterable[Attack], work: Path) -> list[Outcome]:
    """What becomes of each, in order. Each runs in a folder of its own below `work`, which is removed."""
    waiting, outcomes = list(attacks), []
    while waiting:
        done = _run_until_death(waiting, work)
        outcomes += done
        waiting = waiting[len(done) :]
    return outcomes


def count(outcomes: Sequence[Outcome]) -> dict[str, Counter[str]]:
    """How often each word, by family."""
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        counts.setdefault(outcome.attack.family, Counter())[outcome.word] += 1
    return counts


def _run_until_death(attacks: Sequence[Attack], work: Path) -> list[Outcome]:
    """One child runs attacks until one of them kills it: at least one outcome."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(attacks, work, writer)
    os.close(writer)
    outcomes: list[Outcome] = []
    text, end, spent = b"", time.monotonic() + PATIENCE, 0.0
    os.set_blocking(reader, False)
    word = "crash"
    while True:
        try:
            block = os.read(reader, 1 << 16)
        except BlockingIOError:
            if (now := _processor_seconds(child)) > spent:  # on a busy machine it is slow, and does not hang
                spent, end = now, time.monotonic() + PATIENCE
            if time.monotonic() > end:
                word = "hang"
                break
            time.sleep(0.02)
            continue
        if not block:
            break
        *lines, text = (text + block).split(b"\n")
        for line in lines:
            found, detail = json.loads(line)
            outcomes.append(Outcome(attacks[len(outcomes)], found, detail))
            end = time.monotonic() + PATIENCE
    os.close(reader)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    shutil.rmtree(work / f"child-{child}", ignore_errors=True)
    if len(outcomes) < len(attacks):
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGXCPU:
            word = "hang"
        outcomes.append(Outcome(attacks[len(outcomes)], word, f"(the process ended with {code})"))
    return outcomes


def _child(attacks: Sequence[Attack], work: Path, writer: int) -> None:
    """Run attacks one after the other and tell of each; never returns."""
    try:
        _run_and_tell(attacks, work, writer)
    finally:
        os._exit(0)


def _run_and_tell(attacks: Sequence[Attack], work: Path, writer: int) -> None:
    os.setsid()
    own = work / f"child-{os.getpid()}"
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # libraries in C write there
        os.dup2(silent, stream)
    _limit(resource.RLIMIT_AS, _virtual_bytes() + ADDRESS_SPACE)
    _limit(resource.RLIMIT_CORE, 0)
    for attack in attacks:
        own.mkdir(parents=True)
        _limit(resource.RLIMIT_CPU, int(_own_seconds() + 3 * SECONDS) + 1)
        outcome = _attempt(attack, own)
        shutil.rmtree(own, ignore_errors=True)
        os.write(writer, json.dumps(outcome).encode() + b"\n")


def _attempt(attack: Attack, folder: Path) -> tuple[str, str]:
    began, before = _own_seconds(), _peak_megabytes()
    try:
        word, detail = attack.run(folder), ""
    except (CoamError, Refused) as error:
        word, detail = "refused", str(error)
        if len(detail.splitlines()) != 1 or len(detail) > LONGEST_LINE:
            word = "not a line"
    except BaseException:
        word, detail = "traceback", traceback.format_exc()[-1500:]
    if (spent := _own_seconds() - began) > SECONDS:
        word, detail = "hang", f"{spent:.0f} s; {word} {detail}"
    if (grown := _peak_megabytes() - before) > MEGABYTES:
        word, detail = "memory", f"{grown:.0f} MB; {word} {detail}"
    if left := [path.name for path in folder.rglob(".coam-*") if path.name != ".coam-lock"]:
        word, detail = "left", f"{left[0]}; {word} {detail}"
    return word, detail


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _own_seconds() -> float:
    return time.process_time()


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _virtual_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _processor_seconds(process: int) -> float:
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_child(work: Callable[[], object]) -> None:
    """Run `work` in a process of its own: what starts threads must not run in one that is forked later."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise RuntimeError(f"what was to be attacked could not be made (status {status})")
