"""Mixture training: PQN agents write to a lake, a BigAgent learns from all of it, and the agents become clones of it.

trainer     `MixtureTrainer`: the loop over mixture rounds, phases and portions
build       the agents, the BigAgent and their ponds, from a recipe
networks    Q-networks and seeds
ponds       one pond and one stream of the lake per agent
big_agent   the BigAgent and its BigPond
measures    evaluation, recovery after a reset, diversity, the final summary
ranks       which rank has which agents, and what ranks exchange
"""
