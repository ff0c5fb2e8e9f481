"""What the workers of tests/runs compute: they import this module, so that it has to lie in a file of its own."""

import json
import os
import random
import signal
import sys
import time
import uuid
from pathlib import Path


def compute(x, seed, log=None):
    """A number that depends on the arguments alone. The folder `log` tells who computed it, and whether to the end."""
    run = f"{x}-{seed}.{os.getpid()}.{uuid.uuid4().hex}"
    if log:
        Path(log, f"{run}.begun").touch()
        time.sleep(float(os.environ.get("SWEEP_TASK_SECONDS", 0)))
    result = {"value": random.Random(f"{x} {seed}").gauss(0, 1), "name": f"ü{x}"}
    if log:
        Path(log, f"{run}.done").touch()
    return result


def reciprocal(x):
    return {1, 2} if x == "unkeepable" else 1 / x


def dies(x):
    if x == 3:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def threads(x):
    import torch

    return torch.get_num_threads()


def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    for epoch in range(1, 10):
        trial.report(-((x - 0.3) ** 2) - 1 / epoch, epoch)
        time.sleep(float(os.environ.get("SWEEP_TASK_SECONDS", 0)))
        if trial.should_prune():
            import optuna

            raise optuna.TrialPruned
    return -((x - 0.3) ** 2)


if __name__ == "__main__":  # sweep_tasks.py run|search <arguments of the call as JSON>
    import sweep_tasks  # whose functions are called `sweep_tasks.*` and not `__main__.*`, here as in the test
    from lib.runs import hyperparameters, sweep

    if sys.argv[1] == "run":
        sweep.run(sweep_tasks.compute, **json.loads(sys.argv[2]))
    else:
        hyperparameters.search(sweep_tasks.objective, **json.loads(sys.argv[2]))
