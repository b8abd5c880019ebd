"""What a node that does not own the store does with clients: passes them on, tells them where to go, refuses them."""
