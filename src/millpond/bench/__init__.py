"""How fast this machine is, how fast each stage of a recipe is on it, and what an iteration takes."""
