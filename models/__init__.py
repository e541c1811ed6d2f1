"""MongoDB documents: fields, indexes and operations; one module per collection."""
