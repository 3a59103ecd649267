"""Learning a per-step reward from whole episodes.

objectives  the losses, as pure functions
network     the reward network and the batch of steps that it takes
batches     the steps that are sampled from recorded episodes, their features, and the loss of one batch
own_episodes  episodes that an agent finished itself
metrics     correlations, baselines and scores of a learned reward, as pure functions
"""
