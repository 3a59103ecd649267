"""Reward learning from recorded episodes, alone or together with an agent."""
