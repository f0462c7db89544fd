"""Evidence from answers: replies kept on disk, the memorisation test's tables and pictures."""
