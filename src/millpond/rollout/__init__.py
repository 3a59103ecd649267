"""On-policy experience.

`schema` lists the arrays of a row, `rows` holds them, `collector` fills them, `sampling` draws minibatches. Nothing is
imported here, since the planner reads the schema and must not wait for torch.
"""
