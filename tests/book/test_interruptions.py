"""A build that is interrupted or killed loses nothing that was finished, and leaves no process behind."""

import os
import signal
from pathlib import Path

import pytest
import torch

from waiting import wait_for

SLEEPS = """import os, pathlib, subprocess, time
child = subprocess.Popen(["sleep", "600"])
pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}.")
time.sleep(600)"""
DRAWS = """import os, pathlib, time, torch
from lib.book import resume
def draw(part):
    for item in part:
        while item == 3 and not pathlib.Path("go").exists():
            pathlib.Path("pids").write_text(f"{os.getpid()}.")
            time.sleep(0.05)
        with open("log", "a") as log:
            log.write(f"{item} ")
    return [torch.rand(3, generator=torch.Generator().manual_seed(item)) for item in part]
draws = resume.run(draw, [0, 1, 2, 3, 4], "draws", at_once=1)
print('drawn', torch.stack(draws).tolist())"""


def begun(book):
    """The processes of the code that is to be interrupted, once it has begun."""
    path = book.root / "pids"
    wait_for(lambda: path.exists() and path.read_text().endswith("."), "this code to begin")
    return path.read_text().strip(".").split()


def gone(processes):
    return all(not alive(process) for process in processes)


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_kernel_that_is_killed_is_said_to_be_and_takes_with_it_what_it_had_started(real):
    real.chapter("two", SLEEPS)
    process = real.start("execute", "--chapter", "part/two")
    kernel, child = begun(real)
    os.kill(int(kernel), signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "killed by signal 9; usually memory ran out" in output
    wait_for(lambda: gone([child]), "its child to end")


@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)], ids=["Ctrl-C in a terminal", "kill"]
)
def test_ctrl_c_and_a_polite_kill_end_the_kernels_and_keep_what_is_finished(real, number, send):
    """Ctrl-C in a terminal also reaches the process that kernels are forked from."""
    real.chapter("two", SLEEPS)
    process = real.start("build")
    wait_for(lambda: set(real.executed()) == {"one"}, "the first chapter to finish")
    processes = begun(real)
    send(process.pid, number)
    output, _ = process.communicate(timeout=60)
    wait_for(lambda: gone(processes), "the kernel and what it started to end", 20)
    assert process.returncode == 130 and "interrupted" in output and "Traceback" not in output
    assert set(real.executed()) == {"one"}
    assert not (real.build / "html").exists()


def test_a_build_killed_inside_a_chapter_goes_on_from_its_finished_runs_and_ends_with_the_same_results(real):
    real.chapter("two", DRAWS)
    process = real.start("execute", "--chapter", "part/two")
    kernel = begun(real)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: gone(kernel), "the kernel to end with the build", 20)
    assert (real.root / "log").read_text() == "0 1 2 "
    (real.root / "go").touch()
    real.run("execute", "--chapter", "part/two")
    assert (real.root / "log").read_text() == "0 1 2 3 4 ", "each run is made once"
    assert real.notebook("two").metadata.book["resumed"] == 3
    assert "draws: 3 of 5 runs are taken up from a build before" in real.printed("two")
    assert not [path for path in (real.build / "unfinished").rglob("*") if path.is_file()]
    draws = [torch.rand(3, generator=torch.Generator().manual_seed(item)).tolist() for item in range(5)]
    assert f"drawn {draws}" in real.printed("two"), "as from a build that nothing interrupts"


def test_a_build_killed_while_sphinx_writes_leaves_the_old_site_and_the_next_ones_take_turns(built):
    old = built.html("part/one")
    built.edit("chapters/part/one.md", "Prose.", "New prose.")
    process = built.start("publish")
    wait_for(lambda: list((built.build / "sites").glob(".*.new/*")), "Sphinx to write")
    process.kill()
    process.communicate()
    assert built.html("part/one") == old
    both = [built.start("publish") for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum("waiting" in output for output in outputs) == sum("unchanged" in output for output in outputs) == 1
    assert "New prose." in built.html("part/one")
    assert not list((built.build / "sites").glob(".*"))
