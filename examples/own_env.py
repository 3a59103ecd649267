"""Train on your own environment: pass its class, or a function that makes one."""

from __future__ import annotations

import millpond
from ball import Ball


def main(steps: int = 100_000) -> None:
    run = millpond.train(env=Ball, run="own-env", overwrite=True, overrides=[f"trainer.total_timesteps={steps}"])
    result = millpond.evaluate(run, episodes=50)
    print(f"return {result.mean:.1f} of 32, 95% interval {result.low:.1f} to {result.high:.1f}")

    policy = millpond.load("own-env")  # by name: also in another process, another day
    env = Ball()
    observation, _ = env.reset(seed=1)
    action, _ = policy.predict(observation)
    print(f"the ball is at {observation[0]:+.2f}: push it to the {'right' if action else 'left'}")


if __name__ == "__main__":
    main()
