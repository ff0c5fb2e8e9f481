"""Kernels forked from one process that has imported the large packages once, instead of starting one interpreter each.

Importing torch, torchvision, matplotlib and scipy takes longer than many a chapter. Each kernel remains a process of
its own, with its own environment, and imports the modules of `lib` itself, except the one that is torchvision. Only on
Linux: elsewhere a process that has loaded the system's own libraries may not fork, and jupyter_client starts kernels.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import uuid
from importlib.metadata import EntryPoint
from multiprocessing import forkserver

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner
from traitlets import Dict, Unicode

from lib.book.kernel import notes
from lib.book.page import BadInput

# These can be imported before a fork: OpenBLAS renews its threads after it, and no chapter uses NumPy's global
# generator, which all kernels would share. `lib.data.vision` is torchvision.
LARGE = ("torch", "numpy", "matplotlib.pyplot", "scipy.optimize", "scipy.stats", "networkx", "lib.data.vision")
FORKED = sys.platform == "linux"


def prepare(imported: set[str]) -> None:
    """Let the kernels of this process be forked with those large packages imported that are among these names.

    The packages find the current environment when they are imported.
    """
    factory = KernelProvisionerFactory.instance()
    factory.provisioners["book"] = EntryPoint("book", f"{__name__}:BookProvisioner", factory.GROUP_NAME)
    factory.default_provisioner_name = "book"
    if FORKED:
        large = [name for name in LARGE if name in imported]
        multiprocessing.set_forkserver_preload(["ipykernel.ipkernel", *large])
        heeded = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C in a terminal is for the build alone
        try:
            forkserver.ensure_running()
        except OSError as error:  # its socket lies there, and the path of a socket has some 100 characters at most
            problem = f"no kernel can be started from the temporary folder '{tempfile.gettempdir()}': {error}"
            raise BadInput(f"{problem}; the variable TMPDIR can name another, with a short path") from error
        finally:
            signal.signal(signal.SIGINT, heeded)


class BookProvisioner(LocalProvisioner):
    """Starts a kernel, by forking where that is possible; all else is jupyter_client's.

    `environment` is added to the kernel's; `stderr` is the file that gets what it writes to standard error.
    """

    environment = Dict(config=True)
    stderr = Unicode(config=True)

    async def pre_launch(self, **settings):
        if FORKED:  # sockets without file or port: a port found free may be another's when the kernel takes it
            self.parent.transport, self.parent.ip = "ipc", f"@{uuid.uuid4()}"
        return await super().pre_launch(**settings, env={**os.environ, **self.environment})

    async def launch_kernel(self, cmd, *, env, **settings):
        if not FORKED:
            with open(self.stderr, "w") as stderr:
                return await super().launch_kernel(cmd, env=env, stderr=stderr, **settings)
        self.process = _Process(target=_serve, args=(os.path.realpath(self.parent.connection_file), env, self.stderr))
        self.process.start()
        self.pid = self.pgid = self.process.pid
        return self.connection_info

    async def poll(self):
        status = await super().poll()
        if FORKED and self.pgid and status is not None and status < 0:
            with open(self.stderr, "a") as log:
                log.write(f"killed by signal {-status}; usually memory ran out, and JOBS=1 takes less\n")
            with contextlib.suppress(ProcessLookupError):  # what it had started, which nobody else would end
                os.killpg(self.pgid, signal.SIGKILL)
            self.pgid = None
        return status


class _Process(multiprocessing.get_context("forkserver" if FORKED else None).Process):
    """A forked process with the methods that jupyter_client knows from subprocess.Popen."""

    stdin = stdout = stderr = None

    def poll(self):
        return self.exitcode

    def wait(self):
        self.join()
        return self.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)


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
    """End this kernel, and what it has started, when the build has ended, however it did. The parent handle is the fork
    server's, which outlives a killed build as long as a kernel holds its pipe."""
    multiprocessing.parent_process().join()
    os.killpg(0, signal.SIGKILL)
