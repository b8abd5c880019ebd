"""Several nodes over one object store: who owns it, who watches, and what becomes of clients at the others."""
