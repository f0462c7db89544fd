"""What people read: one table, one vocabulary of verdicts, one page into which studies put sections. No torch."""
