"""`headrace demo`: a broker in a temporary directory, its clients, and their traffic. No code of the broker."""
