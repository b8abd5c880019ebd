"""Plain topics, sessions and retained messages: who gets what is published to a topic. No wire."""
