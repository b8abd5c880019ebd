"""Users, logins and permissions. No protocol: connections bring the password."""
