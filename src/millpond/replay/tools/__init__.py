"""Tools on a whole lake, each a command: `millpond lake info | verify | compact | export`."""
