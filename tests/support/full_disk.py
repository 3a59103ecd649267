"""Train on a disk that fills up, then make room and resume. Prints the state after each as JSON.

python -m tests.support.full_disk tmpfs FOLDER     on a small tmpfs, in a mount namespace of its own (needs root)
python -m tests.support.full_disk limit FOLDER     with a limit on the size of files
"""

import json
import resource
import subprocess
import sys
from pathlib import Path

from millpond.store import Checkpoints, DiskFullError, read_status
from tests.support import tiny_training


def seen(folder):
    checkpoints = Checkpoints(folder / "checkpoints")
    return {
        "whole": [checkpoints.load(updates).updates for updates in checkpoints.updates()],
        "left_behind": [path.name for path in (folder / "checkpoints").iterdir() if not path.name.isdigit()],
        "state": read_status(folder).state,
    }


def main(kind, root):
    folder = root / tiny_training.NAME
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(root)], check=True)
        arguments = {}
    else:
        # Some checkpoints first; then no file may grow beyond 10,000 bytes, and state.pt has more.
        arguments = {
            "report": lambda count: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, -1)) if count == 22 else None
        }
    try:
        tiny_training.train(root, keep_last=100, **arguments)
        error = "none"
    except DiskFullError as failure:
        error = str(failure)
    full = seen(folder)
    if kind == "tmpfs":
        subprocess.run(["mount", "-o", "remount,size=4m", str(root)], check=True)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    tiny_training.train(root, resume=True, keep_last=100)
    last = Checkpoints(folder / "checkpoints").load(60)
    weights = {name: tensor.tolist() for name, tensor in last.weights["model"].items()}
    print(json.dumps({"error": error, "full": full, "after": seen(folder), "weights": weights}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
