"""A small but real training run on the loop, the recorder and the store, to be killed at any moment.

    python -m tests.support.tiny_training ROOT [--resume]

A regression network with dropout learns from batches of random rows and random size. Python's, NumPy's and torch's
generators all matter to the result. The environment may name a moment at which the process kills itself:

    DIE="before fsync manifest.json 3"     when it is about to sync its third manifest
    DIE="after rename .writing 2"          when it has renamed the second folder with a name like this
    DIE="half write state.pt 4"            in the middle of the write to its fourth state.pt
"""

import os
import random
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from torch import nn

from millpond.loop import Loop, Redraw
from millpond.record import Counters, Recorder, TensorBoard, Timer
from millpond.store import Checkpoints, Parts, RandomState, Run, training

NAME = "tiny"


def train(
    root, *, resume=False, report=lambda count: None, keep_last=2, batch_sleep=0.0, nan_at=None, max_seconds=None
):
    torch.set_num_threads(1)
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(3)
    rows = np.random.default_rng(4)
    run = Run.resume(root, NAME) if resume else Run.start(root, NAME, config_yaml="seed: 3\n", plan={"updates": 60})

    inputs = torch.linspace(-1, 1, 64).unsqueeze(1) * torch.ones(1, 4)
    targets = torch.sin(3 * inputs[:, :1])
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    loop = Loop(epoch=2, cycle=3, iteration=2, batch=5)
    counters, timer = Counters(), Timer()
    recorder = Recorder(run.metrics_path, counters, [TensorBoard(run.tensorboard_path, "updates")])
    checkpoints = Checkpoints(run.checkpoints_path, keep_last=keep_last, better="lower")
    randomness = RandomState(rows=rows)
    parts = Parts(
        weights={"model": model},
        state={"optimizer": optimizer, "random": randomness},
        values={"loop": loop, "counters": counters, "recorder": recorder},
    )
    score = None

    def draw():
        return {"indices": rows.integers(0, len(inputs), size=random.randint(3, 20))}

    def redraw(state, skip):
        randomness.load_state_dict(state)
        for _ in range(skip):
            draw()
        return draw()

    def at_iteration(ended):
        nonlocal score
        score = ended.moments["loss"].mean
        recorder.write({**ended.means(), "loss_std": ended.moments["loss"].std, **timer.take()})
        loop.request_save()

    loop.at_end("iteration", at_iteration)
    loop.on_save(lambda: checkpoints.save(counters.updates, parts, score))
    loop.on_non_finite(Redraw(randomness.state_dict, redraw, run.save_batch))
    if resume:
        checkpoints.restore(parts)

    with closing(run), training(run, loop, recorder):
        for at in loop.run(max_seconds=max_seconds):
            with timer("train"):
                indices = draw()["indices"]
                loss = nn.functional.mse_loss(model(inputs[indices]), targets[indices])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                counters.updates += 1
            loop.record("loss", loss * float("nan") if at.indices == nan_at else loss, weight=len(indices))
            report(loop.count)
            time.sleep(batch_sleep)
    return run


def die_as_configured():
    if "DIE" not in os.environ:
        return
    when, name, file, number = os.environ["DIE"].split()
    original, left = getattr(os, name), int(number)

    def wrapped(target, *arguments):
        nonlocal left
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
        if file in os.path.basename(path):
            left -= 1
            if left == 0:
                if when == "half":
                    original(target, bytes(arguments[0])[: len(arguments[0]) // 2])
                elif when == "after":
                    original(target, *arguments)
                os.kill(os.getpid(), signal.SIGKILL)
        return original(target, *arguments)

    setattr(os, name, wrapped)


if __name__ == "__main__":
    die_as_configured()
    train(
        Path(sys.argv[1]), resume="--resume" in sys.argv, report=print, batch_sleep=float(os.environ.get("SLEEP", "0"))
    )
