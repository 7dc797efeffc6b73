"""What may be said about a point: the true gradient with a bound on its error, and what the bound rests on."""
