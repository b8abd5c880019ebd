"""Instructions per message, counted under callgrind and compared with a record."""
