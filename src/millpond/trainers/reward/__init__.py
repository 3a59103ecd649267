"""Reward learning from recorded episodes, alone or together with an agent (full mode).

trainer     the loop: epoch > cycle > iteration > batch
setup       recorded episodes opened, audited and split; networks built and fitted
agent       full mode: the agent, and batches of the episodes in its pond
evaluation  metrics on held-out episodes, beside baselines
score       the learned reward of any recorded episodes, as a file and as a picture
"""
