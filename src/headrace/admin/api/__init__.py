"""Our own HTTP API under /api/v1: one file per noun, each with its operations; openapi.py describes them all."""
