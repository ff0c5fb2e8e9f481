"""Kernels forked from one process that has imported the large packages once, instead of starting one interpreter each.

Importing torch, torchvision, matplotlib and scipy takes longer than many a chapter. Each kernel remains a process of
its own, with its own environment, and imports the modules of `lib` itself, except the one that is torchvision.
"""

import multiprocessing
import os
import signal
import sys
import threading
import uuid
from multiprocessing import forkserver

from jupyter_client.manager import AsyncKernelManager

from lib.book.kernel import notes

# These can be imported before a fork: OpenBLAS renews its threads after it, and no chapter uses NumPy's global
# generator, which all kernels would share. `lib.data.vision` is torchvision.
LARGE = ("torch", "numpy", "matplotlib.pyplot", "scipy.optimize", "scipy.stats", "networkx", "lib.data.vision")


def prepare(imported: set[str]) -> None:
    """Let the kernels of this process be forked with those large packages imported that are among these names.

    The packages find the current environment when they are imported.
    """
    large = [name for name in LARGE if name in imported]
    multiprocessing.set_forkserver_preload(["ipykernel.ipkernel", *large])
    if MANAGER is ForkedKernel:
        heeded = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C in a terminal is for the build alone
        forkserver.ensure_running()
        signal.signal(signal.SIGINT, heeded)


def _serve(connection_file: str, environment: dict[str, str], log: str) -> None:
    """The life of a kernel, in the new process, which leads a session of its own."""
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()
    with open(log, "w") as stderr:
        os.dup2(stderr.fileno(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with_the_build, daemon=True).start()
    notes.watch()
    settings = {"IPKernelApp.parent_handle": os.getppid(), "HistoryManager.hist_file": ":memory:"}  # no database
    IPKernelApp.launch_instance(["-f", connection_file, *(f"--{name}={value}" for name, value in settings.items())])


def _end_with_the_build() -> None:
    """The parent handle is the fork server's, which outlives a killed build as long as a kernel holds its pipe."""
    multiprocessing.parent_process().join()
    os._exit(1)


class _Process(multiprocessing.get_context("forkserver").Process):
    """A forked process with the methods that jupyter_client knows from subprocess.Popen."""

    stdin = stdout = stderr = None

    def poll(self):
        return self.exitcode

    def wait(self):
        self.join()
        return self.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)


class ForkedKernel(AsyncKernelManager):
    """Starts a kernel by forking; all else is jupyter_client's.

    It is reached by sockets without a file or a port: a port found free may be another's when the kernel takes it.
    """

    def __init__(self, **settings):
        super().__init__(transport="ipc", ip=f"@{uuid.uuid4()}", **settings)

    async def _async_launch_kernel(self, kernel_cmd, env, stderr, **_):
        arguments = (os.path.realpath(self.connection_file), env, os.path.realpath(stderr.name))
        process = _Process(target=_serve, args=arguments)
        process.start()
        self.provisioner.process = process
        self.provisioner.pid = self.provisioner.pgid = process.pid


# On other systems a process that has loaded the system's own libraries may not fork.
MANAGER = ForkedKernel if sys.platform == "linux" else AsyncKernelManager
