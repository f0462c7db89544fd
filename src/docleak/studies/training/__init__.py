"""Trainings over silos: as rows of tables, scored on unseen documents, and what is said of those of docleak train."""
