"""Take part in a run: record a metric of your own, keep a checkpoint, and stop when it is good enough."""

from __future__ import annotations

import numpy as np

import millpond
from ball import Ball


class Watch:
    """An object with any of the methods on_start, on_iteration, on_evaluation, on_checkpoint and on_end."""

    def __init__(self, enough: float) -> None:
        self.enough, self.best = enough, -np.inf

    def on_iteration(self, event: millpond.Event) -> None:
        policy = event.policy
        assert policy is not None
        left, right = policy.predict(np.array([[-1.0], [1.0]], np.float32))[0]
        event.record("pushes_to_the_middle", float(left == 1) + float(right == 0))  # in all logs, and in run.metrics()
        reached = event.metrics.get("episode_return", -np.inf)
        if reached > self.best + 1:
            self.best = reached
            event.save()
        if reached > self.enough:
            event.stop(f"a return of {reached:.1f}")

    def on_end(self, event: millpond.Event) -> None:
        print(f"{event.counters['agent_steps']:,.0f} steps, stopped by {event.stopped}")


def main(steps: int = 200_000, enough: float = 25.0) -> None:
    settings = [f"trainer.total_timesteps={steps}"]
    run = millpond.train(env=Ball, callbacks=Watch(enough), run="callback", overwrite=True, overrides=settings)
    metrics = run.metrics()
    for done, reached, pushes in zip(
        metrics["agent_steps"], metrics["episode_return"], metrics["pushes_to_the_middle"], strict=True
    ):
        print(f"{done:9,.0f} steps: return {reached:5.1f}, {pushes:.0f} of 2 pushes are right")


if __name__ == "__main__":
    main()
