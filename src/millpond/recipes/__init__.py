"""Packaged recipes: the YAML files that `millpond recipes` lists."""
