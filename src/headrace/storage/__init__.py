"""All durable state: one interface (api.py), several engines. No routing, no protocols."""
