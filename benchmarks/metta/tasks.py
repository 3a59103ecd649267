"""The trainings: `metta` beside `metta-2026` at a sixteenth of their size, and what the parts of `metta-2026` are worth."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.zoo.tasks import Task

BATCH = 98_304  # agent steps: 384 agents for 256 steps; a sixteenth of the recipes' is 98,304 and 131,072
ITERATIONS = 40
TASKS = {
    task.name: task
    for task in (
        Task("grid", "metta", ITERATIONS * BATCH, eval_episodes=20),
        Task("mettagrid", "metta", ITERATIONS * BATCH, reward_steps=1_000),
    )
}
SIZES = (
    "env.max_steps=256",
    "trainer.num_workers=1",
    "trainer.forward_pass_minibatch_target_size=null",
    "trainer.num_envs=128",
    "trainer.async_factor=1",
    "trainer.batch_unit=agent_steps",
    f"trainer.batch_size={BATCH}",
)
WORLDS = {
    "grid": (),
    "mettagrid": ("env.id=mettagrid", "env.stagger=false", "env.mettagrid.num_tokens=200", "env.mettagrid.size=15"),
}
MINIBATCH = {"metta": 3_072, "metta-2026": 1_024}  # a sixteenth of 49,152 and 16,384 agent steps
BOTH, GRID = ("grid", "mettagrid"), ("grid",)


@dataclass(frozen=True)
class Setting:
    """A recipe with settings changed, and the tasks that it is tried on."""

    name: str
    title: str
    recipe: str
    changes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = GRID

    def overrides(self, task: str) -> tuple[str, ...]:
        """Return everything that is set on a task besides its length and the seed."""
        sizes = (*SIZES, f"trainer.minibatch_size={MINIBATCH[self.recipe]}")
        return (*sizes, *WORLDS[task], *self.changes)


SETTINGS = {
    one.name: one
    for one in (
        Setting("metta", "`metta`", "metta", tasks=BOTH),
        Setting("metta-2026", "`metta-2026`", "metta-2026", tasks=BOTH),
        Setting(
            "minibatches", "`metta` with the minibatches of `metta-2026`", "metta", ("trainer.minibatch_size=1024",)
        ),
        Setting(
            "adam", "with Adam of `metta`", "metta-2026",
            ("ppo.optimizer=adam", "ppo.learning_rate=4.57e-4", "ppo.weight_decay=null", "ppo.warmup_updates=0"),
        ),
        Setting("mse", "with the squared error for the value", "metta-2026", ("ppo.critic=mse",)),
        Setting(
            "discount", "discounted, without reward centering", "metta-2026",
            ("ppo.reward_centering=null", "ppo.gamma=0.977"),
        ),
        Setting(
            "once", "advantages once per iteration", "metta-2026",
            ("ppo.refresh_values=false", "ppo.recompute_advantage=false"),
        ),
    )
}  # fmt: skip
