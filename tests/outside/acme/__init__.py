"""A package outside the tree that plugs into `embodied`."""
