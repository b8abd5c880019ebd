"""Several nodes over one object store: its owner, its waiting nodes, and the forwarding of their clients."""
