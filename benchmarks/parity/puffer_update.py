"""One iteration of PufferLib's own training on fixed rows, stored for a test. Runs in PufferLib's virtual environment.

    ~/.cache/millpond/peers/puffer/bin/python benchmarks/parity/puffer_update.py tests/data/puffer_update.npz

The network is Millpond's plain policy behind the methods that PufferLib calls. Stored are its weights before and after, the
rows, and what PufferLib drew: the rows of every minibatch, and the probabilities that it drew them by. The test
`tests/trainers/ppo/test_puffer_update.py` makes the same updates without PufferLib.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.metadata import version

import gymnasium
import numpy as np
import torch
from puffer_side import SameNetwork
from pufferlib import PufferEnv
from pufferlib.pufferl import PuffeRL

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies import build_policy

ROWS, HORIZON, NUMBERS, ACTIONS, HIDDEN, EPOCHS = 64, 32, 5, 3, 16, 3
CONFIG = {
    "env": "rows",
    "seed": 1,
    "device": "cpu",
    "precision": "float32",
    "batch_size": ROWS * HORIZON,
    "bptt_horizon": HORIZON,
    "minibatch_size": ROWS * HORIZON // 4,
    "max_minibatch_size": ROWS * HORIZON // 4,
    "update_epochs": EPOCHS,
    "use_rnn": True,
    "cpu_offload": False,
    "compile": False,
    "compile_mode": "default",
    "compile_fullgraph": False,
    "torch_deterministic": False,
    "optimizer": "adam",
    "anneal_lr": False,
    "total_timesteps": 10 * ROWS * HORIZON,
    "checkpoint_interval": 10**9,
    "data_dir": tempfile.mkdtemp(),
}
NUMBERS_OF_PPO = {
    "learning_rate": 0.03,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_eps": 1e-8,
    "gamma": 0.97,
    "gae_lambda": 0.9,
    "vtrace_rho_clip": 1.0,
    "vtrace_c_clip": 1.0,
    "clip_coef": 0.1,
    "vf_clip_coef": 0.1,
    "vf_coef": 0.5,
    "ent_coef": 0.01,
    "max_grad_norm": 0.5,
    "prio_alpha": 0.8,
    "prio_beta0": 0.2,
}
EPOCH = 5  # of ten, for the exponent of the importance weights


class NoEnvs(PufferEnv):
    """As many agents as there are rows; it is never stepped."""

    def __init__(self):
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (NUMBERS,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(ACTIONS)
        self.num_agents = self.agents_per_batch = ROWS
        super().__init__()

    def reset(self, seed=None):
        return self.observations, []


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    seen, action = ObservationSpec.single((NUMBERS,), "float32", "vector"), ActionSpec.discrete(ACTIONS)
    policy = build_policy(seen, action, core="lstm", hidden_size=HIDDEN, generator=generator)
    with torch.no_grad():
        policy.output.weight.mul_(10.0)
    PuffeRL.print_dashboard = PuffeRL.mean_and_log = lambda *_, **__: None
    trainer = PuffeRL({**CONFIG, **NUMBERS_OF_PPO}, NoEnvs(), SameNetwork(policy))
    trainer.epoch = EPOCH
    before = {name: tensor.clone().numpy() for name, tensor in policy.state_dict().items()}
    shape = (ROWS, HORIZON)
    trainer.observations.normal_(generator=generator)
    trainer.actions.copy_(torch.randint(0, ACTIONS, shape, generator=generator))
    reset = torch.zeros(shape, dtype=torch.bool)
    with torch.no_grad():
        unrolled = policy.unroll(
            trainer.observations, policy.initial_state(ROWS), reset, trainer.actions.int(), action_mask=None
        )
    trainer.logprobs.copy_(unrolled.log_prob)
    trainer.values.copy_(unrolled.value)
    trainer.rewards.copy_(torch.randn(shape, generator=generator).clamp(-1, 1))
    trainer.terminals.copy_(torch.rand(shape, generator=generator) < 0.05)
    names = ("observations", "actions", "logprobs", "values", "rewards", "terminals")
    rows = {name: getattr(trainer, name).clone().numpy() for name in names}
    drawn, probabilities, draw = [], [], torch.multinomial

    def record(weights, count, *rest, **options):
        picked = draw(weights, count, *rest, **options, generator=generator)
        drawn.append(picked.numpy())
        probabilities.append(weights.numpy())
        return picked

    torch.multinomial = record
    trainer.train()
    torch.multinomial = draw
    after = {name: tensor.numpy() for name, tensor in policy.state_dict().items()}
    np.savez_compressed(
        sys.argv[1],
        version=version("pufferlib-core"),
        progress=EPOCH / trainer.total_epochs,
        drawn=np.stack(drawn),
        probability=np.stack(probabilities),
        ratio=trainer.ratio.numpy(),
        value=trainer.values.numpy(),
        **{f"numbers/{name}": number for name, number in NUMBERS_OF_PPO.items()},
        **{f"rows/{name}": array for name, array in rows.items()},
        **{f"before/{name}": array for name, array in before.items()},
        **{f"after/{name}": array for name, array in after.items()},
    )
    os._exit(0)  # its threads would keep the process


if __name__ == "__main__":
    main()
