"""Hours of steady work at a share of the measured capacity: everything is done once, and no process keeps growing."""
