"""Stable-Baselines3's PPO. Runs in a separate virtual environment; prints JSON.

    sb3_ppo.py cartpole-mlp|halfcheetah|pong ITERATIONS SEED [--vector dummy|subproc]

Actor and critic share all hidden layers, as in Millpond: SB3's own MlpPolicy has a network for each, which is twice the
work. Without --vector, envs are stepped where this is fastest for SB3 on two cores.
"""

from __future__ import annotations

import argparse

import gymnasium
from sb3_watch import Watch
from settings import PPO as TASKS
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack
from torch import nn

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}
VECTORS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}
FASTEST = {"cartpole-mlp": "dummy", "halfcheetah": "dummy", "pong": "subproc"}


class SharedLayers(nn.Module):
    """Hidden layers of actor and critic. They may be trained by the policy loss alone."""

    def __init__(self, inputs, sizes, activation, value_trains_layers):
        super().__init__()
        layers = []
        for size in sizes:
            layers += [nn.Linear(inputs, size), activation()]
            inputs = size
        self.layers, self.value_trains_layers = nn.Sequential(*layers), value_trains_layers
        self.latent_dim_pi = self.latent_dim_vf = inputs

    def forward(self, features):
        hidden = self.layers(features)
        return hidden, hidden if self.value_trains_layers else hidden.detach()

    def forward_actor(self, features):
        return self.layers(features)

    def forward_critic(self, features):
        return self.forward(features)[1]


def policy_class(task):
    class SharedPolicy(ActorCriticPolicy):
        def _build_mlp_extractor(self):
            self.mlp_extractor = SharedLayers(
                self.features_dim, self.net_arch, self.activation_fn, task.value_trains_layers
            )

    return SharedPolicy


def make_pong():
    import ale_py  # also in worker processes

    gymnasium.register_envs(ale_py)
    return gymnasium.make("PongNoFrameskip-v4")


def make_envs(name, task, seed, vector):
    if name != "pong":
        return make_vec_env(task.env, n_envs=task.envs, seed=seed, vec_env_cls=vector)
    # Frame skip 4 with the maximum of two frames, 84x84 grey, no-ops, fire at the start, rewards clipped; no sticky actions.
    envs = make_atari_env(make_pong, n_envs=task.envs, seed=seed, vec_env_cls=vector)
    return VecFrameStack(envs, n_stack=4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("iterations", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--vector", choices=list(VECTORS))
    options = parser.parse_args()
    task, vector = TASKS[options.task], VECTORS[options.vector or FASTEST[options.task]]
    policy = {
        "net_arch": list(task.layers),
        "activation_fn": ACTIVATIONS[task.activation],
        "features_extractor_class": FlattenExtractor if task.features is None else NatureCNN,
        "features_extractor_kwargs": {} if task.features is None else {"features_dim": task.features},
    }
    model = PPO(
        policy_class(task),
        make_envs(options.task, task, options.seed, vector),
        n_steps=task.steps,
        batch_size=task.minibatch,
        n_epochs=task.epochs,
        learning_rate=task.learning_rate,
        gamma=task.gamma,
        gae_lambda=task.gae_lambda,
        clip_range=task.clip,
        ent_coef=task.entropy,
        vf_coef=task.value / 2,  # its value loss is the squared error without the factor 0.5 of the others
        max_grad_norm=task.max_norm,
        policy_kwargs=policy | {"optimizer_kwargs": {"eps": task.adam_eps}},
        device="cpu",
        seed=options.seed,
    )
    watch = Watch(task.batch)
    model.learn(task.batch * options.iterations, callback=watch)
    model.get_env().close()
    watch.print("SB3 PPO", vector=vector.__name__, seed=options.seed)


if __name__ == "__main__":
    main()
