"""Trainers: each reads like the document it implements, and all drive one loop."""
