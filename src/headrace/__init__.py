"""Headrace: a durable message broker whose log is ready for Spark."""

__version__ = "0.1.0"
