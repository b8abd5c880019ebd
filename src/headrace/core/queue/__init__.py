"""One queue: its log, its groups, what enters and leaves it. No routing, no protocol."""
