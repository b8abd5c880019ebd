"""Where everything durable lives: one interface (api.py), several engines. No routing, no protocols."""
