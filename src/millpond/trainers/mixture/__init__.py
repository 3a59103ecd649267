"""Mixture training: PQN agents write to a lake, a BigAgent learns from all of it, and the agents become clones of it.

trainer   `MixtureTrainer`: the loop over mixture rounds, phases and portions
agents    the agents and the BigAgent: seeds, Q-networks, envs
ponds     one pond and one stream of the lake per agent, and the BigPond
measures  evaluation, recovery after a reset, diversity, the final summary
ranks     which rank has which agents, and what ranks exchange
"""
