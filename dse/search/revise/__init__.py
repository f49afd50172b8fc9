"""Revising a finished study: its candidates under other prices and machines, plans kept."""
