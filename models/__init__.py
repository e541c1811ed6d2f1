"""Documents in MongoDB: their fields, their indexes and the verbs that touch them; one module per collection."""
