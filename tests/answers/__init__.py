"""Every answer of every protocol, and whether it is synced before it is sent. tests/integration drives them.

Each module has a table `ANSWERS` and a function `in_the_code`, which finds the answers in the code's own tables: an
answer that is in one of the two and not in the other is one without a decision.
"""
