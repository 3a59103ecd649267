"""The tasks and the parties of each. Imported by every side, so there are no imports but dataclasses."""

from __future__ import annotations

from dataclasses import dataclass

MILLPOND, SB3, TUNED, RECURRENT, SINGLE_FILE = "millpond", "sb3", "tuned", "recurrent", "single-file"
PUFFER = "puffer"
TITLES = {
    MILLPOND: "Millpond's recipe",
    SB3: "SB3's PPO, its defaults",
    TUNED: "SB3's PPO, RL-Zoo's settings",
    RECURRENT: "SB3's RecurrentPPO, its defaults",
    SINGLE_FILE: "single-file PPO with an LSTM",
    PUFFER: "PufferLib's trainer",
}
SEEDS = {MILLPOND: (1, 2, 3), SB3: (1, 2, 3), TUNED: (1,), RECURRENT: (1,), SINGLE_FILE: (1,), PUFFER: (1,)}
QUICK_STEPS, QUICK_SECONDS = 8_192, 20


@dataclass(frozen=True)
class Task:
    """One row of the table: an env that every party trains in, for `steps` env steps or, if set, for `seconds` of CPU time.

    `recipe` is what stands after `millpond train`; an env id takes the packaged recipe of its family. `published` are
    numbers of others that were looked up, with the conditions under which they were reached. With `reward_steps`, steps are
    agent steps, and a return is the reward per so many of them, since not every party reports episodes.
    """

    name: str
    recipe: str
    steps: int
    parties: tuple[str, ...] = (MILLPOND, SB3)
    seconds: int | None = None
    seeds: tuple[int, ...] | None = None  # default: those of the party
    published: str = ""
    reward_steps: int | None = None
    eval_episodes: int = 1  # of Millpond's run at its end

    def seeds_of(self, party: str) -> tuple[int, ...]:
        return self.seeds or SEEDS[party]

    @property
    def is_flattened(self) -> bool:
        """True if references see images as vectors."""
        return self.recipe.startswith("minatar:")


DISCRETE, CONTINUOUS = (MILLPOND, SB3, TUNED, SINGLE_FILE), (MILLPOND, SB3, TUNED)
TASKS = {
    task.name: task
    for task in (
        Task("cartpole", "gymnasium:CartPole-v1", 200_000, DISCRETE, published="500 after 100,000", eval_episodes=20),
        Task("pendulum", "gymnasium:Pendulum-v1", 200_000, CONTINUOUS, published="-170 after 2 million (Pendulum-v0)"),
        Task("lunarlander", "gymnasium:LunarLander-v3", 500_000, DISCRETE,
             published="242 after 1 million (LunarLander-v2)"),
        Task("lunarlander-1m", "gymnasium:LunarLander-v3", 1_000_000, (MILLPOND,), eval_episodes=20,
             published="242 after 1 million (LunarLander-v2)"),
        Task("breakout", "minatar:breakout", 300_000, (MILLPOND, SB3, SINGLE_FILE)),
        Task("asterix", "minatar:asterix", 300_000, (MILLPOND, SB3, SINGLE_FILE)),
        Task("space_invaders", "minatar:space_invaders", 300_000, (MILLPOND, SB3, SINGLE_FILE)),
        Task("halfcheetah", "gymnasium:HalfCheetah-v5", 300_000, CONTINUOUS),
        Task("hopper", "gymnasium:Hopper-v5", 300_000, CONTINUOUS),
        Task("recall", "recall", 300_000, (MILLPOND, SB3, RECURRENT, SINGLE_FILE)),
        Task("forage", "benchmarks/peers/forage.yaml", 1_000_000, (MILLPOND, PUFFER), reward_steps=1_000),
        Task("pong", "atari:pong", 10_000_000, seconds=1_800, seeds=(1,), published="21 after 10 million, no sticky actions"),
    )
}  # fmt: skip
