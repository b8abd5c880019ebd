"""Typed values: their kinds, tables and models; the settings of the broker. Other rooms act on them."""
