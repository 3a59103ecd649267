"""Videos of evaluations: a callback that plays one more episode after each, and writes it as a GIF into the run's folder.

The sinks find it there when they get the record of the evaluation.
"""

from __future__ import annotations

import warnings

from millpond.record import video_path
from millpond.trainers.common.callbacks import Event
from millpond.trainers.common.play import evaluate_run

MAX_FRAMES = 300


class EvaluationVideos:
    """Writes `videos/UPDATES.gif`. An env that cannot be drawn gives one warning, and no further videos."""

    def __init__(self) -> None:
        self._failed = False

    def on_evaluation(self, event: Event) -> None:
        policy = None if self._failed else event.policy
        if policy is None:
            return
        folder = event.run.videos_path
        try:
            folder.mkdir(exist_ok=True)
            path = video_path(folder, event.counters["updates"])
            evaluate_run(policy, episodes=1, render=path, max_frames=MAX_FRAMES)
        except Exception as error:
            self._failed = True
            warnings.warn(f"log.videos: no videos of this run: {error}", stacklevel=2)
