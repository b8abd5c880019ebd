"""Pipelines over queues, one file each: a function with typed settings. The commands are in cli/pipeline.py."""
