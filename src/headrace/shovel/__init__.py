"""Moving messages between brokers, at least once: ends that speak to brokers, and the shovel between two of them."""
