"""Stores that keep state documents: one small adapter each. Import the one you need."""
