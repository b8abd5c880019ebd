"""This broker and its peers under the same load, in turn. Nothing of it is loaded by a broker."""
