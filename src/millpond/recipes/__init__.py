"""Recipes: YAML files that `millpond recipes` lists."""
