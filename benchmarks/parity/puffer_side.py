"""PufferLib's own trainer with Millpond's network. Runs in PufferLib's virtual environment; prints JSON.

    puffer_side.py SETTINGS.json WEIGHTS.pt SEED

The network is Millpond's plain policy, imported from this repository, with the weights that Millpond's run began with; in
`forage-bytes` it is PufferLib's own. The trainer, its vectors, its buffers, its advantage function and its losses are
PufferLib's, unchanged.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2]))

import gymnasium
import numpy as np
import pufferlib.models
import pufferlib.vector
import torch
from pufferlib import PufferEnv
from pufferlib.pufferl import PuffeRL

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies import build_policy

SETTINGS = json.loads(Path(sys.argv[1]).read_text()) if sys.argv[1].endswith(".json") else {}


class CartPoles(PufferEnv):
    """Gymnasium's CartPole as a native env of PufferLib: an episode that ended begins again in the same step."""

    def __init__(self, buf=None, seed=0, **_):
        self.num_agents = self.agents_per_batch = SETTINGS["num_envs"]
        self.envs = [gymnasium.make("CartPole-v1") for _ in range(self.num_agents)]
        space = self.envs[0].observation_space
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, space.shape, np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.returns = np.zeros(self.num_agents)
        super().__init__(buf)

    def reset(self, seed=None):
        for k, env in enumerate(self.envs):
            self.observations[k] = env.reset(seed=None if seed is None else 10_000 * seed + k)[0]
        return self.observations, []

    def step(self, actions):
        infos = []
        for k, env in enumerate(self.envs):
            observation, reward, terminated, truncated, _ = env.step(int(actions[k]))
            self.returns[k] += reward
            if terminated or truncated:
                infos.append({"episode_return": float(self.returns[k])})
                self.returns[k] = 0.0
                observation = env.reset()[0]
            self.observations[k], self.rewards[k] = observation, reward
            self.terminals[k], self.truncations[k] = terminated, truncated
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def close(self):
        pass


def make_forage(buf=None, seed=0, **_):
    from mettagrid.config.mettagrid_config import MettaGridConfig
    from mettagrid.envs.mettagrid_puffer_env import MettaGridPufferEnv
    from mettagrid.simulator import Simulator

    config = MettaGridConfig.model_validate_json(SETTINGS["scenario"])
    return MettaGridPufferEnv(Simulator(), config, buf=buf, seed=seed or 0)


class SameNetwork(torch.nn.Module):
    """Millpond's policy behind the methods that PufferLib's trainer calls."""

    def __init__(self, policy):
        super().__init__()
        self.policy, self.hidden_size = policy, policy.hidden_size

    def forward_eval(self, observation, state):
        before = torch.stack((state["lstm_h"], state["lstm_c"]), 1)
        numbers, after = self.policy.step(observation, before)
        state["lstm_h"], state["lstm_c"] = after[:, 0], after[:, 1]
        return numbers[:, :-1], numbers[:, -1:]

    def forward(self, observation, state):
        rows, steps = observation.shape[:2]
        features = self.policy.encoder(observation.transpose(0, 1).flatten(0, 1)).view(steps, rows, -1)
        zero = torch.zeros(rows, 2, self.hidden_size)
        hidden = self.policy.core.unroll(features, zero, torch.zeros(steps, rows, dtype=torch.bool))
        numbers = self.policy.output(hidden).transpose(0, 1)
        return numbers[..., :-1].flatten(0, 1), numbers[..., -1].contiguous()


def same_network():
    seen, actions = SETTINGS["observation"], SETTINGS["actions"]
    observation = ObservationSpec.single(tuple(seen["shape"]), seen["dtype"], seen["kind"], **seen["limits"])
    policy = build_policy(observation, ActionSpec.discrete(actions), core="lstm", hidden_size=SETTINGS["hidden_size"])
    policy.load_state_dict(torch.load(sys.argv[2], weights_only=True))
    return SameNetwork(policy)


def own_network(vector):
    """Return PufferLib's default policy with an LSTM, with initial weights of its own."""
    env, size = vector.driver_env, SETTINGS["hidden_size"]
    base = pufferlib.models.Default(env, hidden_size=size)
    return pufferlib.models.LSTMWrapper(env, base, input_size=size, hidden_size=size)


def main():
    seed = int(sys.argv[3])
    torch.manual_seed(seed)
    if SETTINGS["scenario"] is None:
        vector = pufferlib.vector.make(CartPoles)
    else:
        serial = {"backend": pufferlib.vector.Serial, "num_envs": SETTINGS["num_envs"], "seed": 1_000 * seed}
        vector = pufferlib.vector.make(make_forage, **serial)
    network = own_network(vector) if SETTINGS["network"] else same_network()
    batch = SETTINGS["batch"]
    config = {
        "env": SETTINGS["world"],
        "seed": seed,
        "device": "cpu",
        "precision": "float32",
        "batch_size": batch,
        "bptt_horizon": SETTINGS["horizon"],
        "minibatch_size": batch // SETTINGS["minibatches"],
        "max_minibatch_size": batch // SETTINGS["minibatches"],
        "update_epochs": SETTINGS["update_epochs"],
        "use_rnn": True,
        "cpu_offload": False,
        "compile": False,
        "compile_mode": "default",
        "compile_fullgraph": False,
        "torch_deterministic": False,
        "optimizer": SETTINGS["optimizer"],
        "anneal_lr": True,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "total_timesteps": batch * SETTINGS["iterations"],
        "checkpoint_interval": 10**9,
        "data_dir": tempfile.mkdtemp(),
        **SETTINGS["numbers"],
    }
    PuffeRL.print_dashboard = PuffeRL.mean_and_log = lambda *_, **__: None
    PuffeRL.save_checkpoint = lambda *_, **__: ""
    real_stdout, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    trainer = PuffeRL(config, vector, network)
    levels, began = [], time.perf_counter()
    for _ in range(SETTINGS["iterations"]):
        trainer.stats.clear()
        trainer.evaluate()
        returns = trainer.stats.get("episode_return")
        rewards = float(trainer.rewards.mean())
        levels.append(rewards if SETTINGS["scenario"] else float(np.mean(returns)) if returns else None)
        trainer.train()
    seconds = time.perf_counter() - began
    sys.stdout = real_stdout
    versions = {
        name: version(name) for name in ("pufferlib-core", "torch", "numpy", "gymnasium", "mettagrid", "heavyball")
    }
    print(json.dumps({"levels": levels, "seconds": seconds, "versions": versions}), flush=True)
    os._exit(0)  # its threads would keep the process


if __name__ == "__main__":
    main()
