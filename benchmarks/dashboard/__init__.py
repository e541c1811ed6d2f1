"""The dashboard: how soon a change is on the screens that are open, and what pages and scrapes cost."""
