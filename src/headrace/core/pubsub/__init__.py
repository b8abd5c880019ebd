"""Plain topics, sessions and retained messages: the receivers of a topic's messages. No wire."""
