"""STOMP 1.0, 1.1 and 1.2: frames to calls of core and back."""
