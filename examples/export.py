"""Export a policy with memory to ONNX, and play with onnxruntime alone (pip install 'millpond[export]')."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import onnxruntime

import millpond


def play(file: str, episodes: int) -> list[float]:
    """Play CartPole with an exported policy; nothing of Millpond or torch is used here."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    described = json.loads(session.get_modelmeta().custom_metadata_map["millpond"])
    shape = next(one["shape"] for one in described["inputs"] if one["name"] == "state")
    env, returns = gymnasium.make("CartPole-v1"), []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        state, total, over = np.zeros((1, *shape[1:]), np.float32), 0.0, False  # zeros where an episode starts
        while not over:
            inputs = {"observation": observation[None], "state": state}
            action, state = session.run(["action", "next_state"], inputs)
            observation, reward, terminated, truncated, _ = env.step(action[0])
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def play_policy(policy: millpond.LoadedPolicy, episodes: int) -> list[float]:
    """Play the same episodes with the policy itself."""
    env, returns = gymnasium.make("CartPole-v1"), []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        state, total, over = None, 0.0, False
        while not over:
            action, state = policy.predict(observation, state)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def main(steps: int = 100_000, episodes: int = 5) -> None:
    settings = [f"trainer.total_timesteps={steps}", "policy.core=lstm"]
    run = millpond.train(env="gymnasium:CartPole-v1", run="exported", overwrite=True, overrides=settings)
    policy = millpond.load(run)
    file = policy.export(run.folder / "policy.onnx")
    print("onnxruntime:", play(str(file), episodes))
    print("millpond:   ", play_policy(policy, episodes))


if __name__ == "__main__":
    main()
