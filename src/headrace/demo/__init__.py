"""`headrace demo`: a broker in a temporary directory with believable traffic, seen from its clients. No broker code."""
