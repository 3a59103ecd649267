"""Bytes of a GPU's memory that a run needs at its peak, and the cards on which it fits.

The numbers per step were measured on the emulated device (tests/devices/emulated_memory.py); a real allocator rounds up, and
kernels have working memory of their own: `RESERVED` and `USABLE` allow for both.

steps: agent steps of a micro-batch   H hidden units
"""

from __future__ import annotations

from math import prod

from millpond.config import MixtureRecipe, RewardRecipe
from millpond.envs.spec import EnvSpec, Part
from millpond.formatting import size
from millpond.planner.memory import FLOAT, MOMENTS, TrainingMemory, parameters
from millpond.replay.schema import Schema, pond_record_bytes
from millpond.sizes import convolutions

CARDS = (8, 16, 24, 40, 80)  # GB
RESERVED = 0.8e9  # bytes of CUDA's context and of libraries
USABLE = 0.9  # of the rest; the allocator cannot use all of it

VECTORS = {"lstm": 11.5, "gru": 10.5, "mingru": 3.0, "none": 4.5}  # numbers per step and hidden unit at the peak
VECTORS_PER_LAYER = {"mingru": 5.0}
VECTORS_OF_CRITIC = {"lstm": 6.0, "gru": 5.5, "mingru": 5.5, "none": 3.0}  # that its network stores besides
VECTORS_OF_TOKENS = 1.0
NUMBERS_OF_LOSS = 29  # per step: log-probabilities, values, advantages, their gradients
Q_VECTORS = 10  # of a Q-network, per observation: both layers, their norms, and gradients
DQN_FORWARDS = 2  # forward passes without gradients next to that with them: the online network's and the target's
BATCHES_TOGETHER, MOST_DRAWN = 32, 256 << 20  # of the BigAgent: number, and bytes
AGENT_UNITS = 2 * 256  # hidden units of the agent of reward learning
OPTIMISED = 4  # numbers per trained parameter: itself, its gradient, and two moments


def device_training_memory(
    spec: EnvSpec,
    core: str,
    hidden_size: int,
    optimizer: str,
    rows: int,
    horizon: int,
    agents_per_row: int,
    separate_critic: bool = False,
    num_layers: int = 1,
) -> TrainingMemory:
    """Return the memory of one gradient over `rows` rows on a device; with bfloat16 it is less."""
    count = parameters(spec, core, hidden_size, separate_critic, num_layers)
    assert count is not None
    steps = rows * horizon * agents_per_row
    parts = spec.observation.parts
    vectors = VECTORS[core] + VECTORS_PER_LAYER.get(core, 0.0) * num_layers
    vectors += VECTORS_OF_TOKENS * any(part.kind == "tokens" for part in parts)
    images = sum(numbers_of_images(part) for part in parts)
    if separate_critic:
        vectors += VECTORS_OF_CRITIC[core]
        images *= 2
    outputs = 2 * spec.action.mask_size
    return TrainingMemory(
        minibatch=steps
        * sum(part.nbytes if part.kind in ("grid", "tokens") else prod(part.shape) * FLOAT for part in parts),
        activations=round(steps * (vectors * hidden_size + images + NUMBERS_OF_LOSS + outputs) * FLOAT),
        workspace=count * FLOAT,  # gradients while they are clipped
        parameters=count * FLOAT,
        gradients=count * FLOAT,
        optimizer=count * FLOAT * MOMENTS[optimizer],
    )


def numbers_of_images(part: Part) -> int:
    """Return the numbers per image of all convolutions' outputs, and of the gradients of the first two."""
    if part.kind != "pixels":
        return 0
    outputs = [layer.outputs for layer in convolutions(part.shape)]
    return sum(outputs) + sum(outputs[:2])


def q_network_numbers(spec: EnvSpec, hidden_size: int, frame_stack: int) -> tuple[int, int]:
    """Return the parameters of a Q-network, and the numbers of one observation in its forward and backward pass."""
    count = parameters(spec, "none", hidden_size)
    assert count is not None
    images = sum(numbers_of_images(part) for part in spec.observation.parts)
    return count, images + Q_VECTORS * hidden_size + spec.observation.nbytes * frame_stack


def mixture_device_bytes(
    recipe: MixtureRecipe, spec: EnvSpec, *, collection: int, big_updates: int, big_pond_bytes: int
) -> int:
    """Return the bytes of a mixture: collections and networks of all agents, the BigPond, and the largest update."""
    minibatch = collection // recipe.pqn.num_minibatches
    pqn, dqn, agents, stack = recipe.pqn, recipe.dqn, recipe.mixture.agents, recipe.env.frame_stack
    count, numbers = q_network_numbers(spec, recipe.policy.hidden_size, stack)
    observation = spec.observation.nbytes * stack
    step = observation + 4 * FLOAT + 3 + spec.action.mask_size * spec.action_masks + 2 * 8 + FLOAT
    collections = agents * collection * step + agents * pqn.num_envs * observation
    trained = agents * OPTIMISED * count * FLOAT
    learning = minibatch * (numbers * FLOAT + observation)
    if recipe.mixture.mode == "single":
        return collections + trained + learning
    trained += (OPTIMISED + 1 + (dqn.mean_decay is not None)) * count * FLOAT
    batch = dqn.batch_size * 2 * observation
    batches = max(batch, min(min(BATCHES_TOGETHER, big_updates) * batch, MOST_DRAWN))
    forwards = DQN_FORWARDS * dqn.batch_size * spec.observation.nbytes * FLOAT
    replaying = batches + dqn.batch_size * numbers * FLOAT + forwards
    return collections + trained + big_pond_bytes + max(learning, replaying)


def reward_device_bytes(recipe: RewardRecipe, spec: EnvSpec) -> int:
    """Return the bytes of reward learning with an agent: its replay buffer, all networks, and the largest batch."""
    agent, reward = recipe.agent, recipe.reward
    inputs, action = prod(spec.observation.shape), max(prod(spec.action.shape), spec.action.mask_size)
    units, hidden = AGENT_UNITS // 2, reward.hidden_size
    capacity = -(-agent.replay_transitions // agent.num_envs) * agent.num_envs
    pond = capacity * pond_record_bytes(Schema.from_spec(spec))
    of_agent = (inputs + action) * units + units * units + 2 * units * (action + 2)
    features = 2 * inputs + action
    of_reward = features * hidden + hidden * hidden + 3 * hidden
    networks = ((OPTIMISED + 1) * 3 * of_agent + (OPTIMISED + 1) * of_reward) * FLOAT
    steps = reward.episodes_per_batch * reward.steps_per_episode
    batches = (steps * (4 * hidden + 3 * features) + agent.batch_size * (6 * AGENT_UNITS + 4 * features)) * FLOAT
    return pond + networks + batches


def fitting_cards(needed: int) -> list[int]:
    """Return the cards, in GB, on which so many bytes fit."""
    return [card for card in CARDS if needed <= usable_bytes(card)]


def usable_bytes(card: int) -> float:
    """Return the bytes of a card of so many GB that tensors can use."""
    return (card * 1e9 - RESERVED) * USABLE


def describe_cards(needed: int) -> str:
    """Say on which cards so many bytes fit."""
    fitting = fitting_cards(needed)
    if not fitting:
        return f"{size(needed)} at the peak: more than a card of {CARDS[-1]} GB has for tensors"
    cards = ", ".join(map(str, fitting))
    return f"{size(needed)} at the peak, estimated: fits on cards of {cards} GB"


def largest_steps(training: TrainingMemory, steps: int, other: int, card: int) -> int:
    """Return the agent steps of the largest micro-batch that fits on a card next to `other` bytes; 0 if none does."""
    per_step = (training.minibatch + training.activations) / steps
    fixed = training.total - training.minibatch - training.activations + other
    return max(0, int((usable_bytes(card) - fixed) / per_step))
