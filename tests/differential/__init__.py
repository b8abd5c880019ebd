"""Random programs that run on Headrace and on another broker; everything that a client sees is compared."""
