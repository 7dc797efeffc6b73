"""Figures and tables from columns of numbers; nothing here computes or knows what a run is."""
