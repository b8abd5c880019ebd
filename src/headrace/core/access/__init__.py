"""Users, logins and permissions. No protocol asks for a password here by itself."""
