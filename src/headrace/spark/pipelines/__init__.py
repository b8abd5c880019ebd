"""Pipelines over queues, one file each: a function with typed settings. The commands that run them are cli's."""
