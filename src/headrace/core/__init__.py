"""Decisions: what goes where, and what happens to it next. No protocol, no socket, no clock of its own."""
