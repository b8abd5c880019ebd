"""The local engine: one group-committed journal, many columnar logs, one directory."""
